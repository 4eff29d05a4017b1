"""The control log: events, their fold, roles and runs; every control topic, and its codec."""
