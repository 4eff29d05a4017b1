"""Drill-downs: finds the records behind a difference, names them, and copies missing ones again."""
