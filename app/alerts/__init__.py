"""Alerts told to people (what is told `app.alerts.rules` decides): their rules, and their delivery."""
