"""The control log: its events, their fold, regions' roles, failover runs, every control topic and its
codec."""
