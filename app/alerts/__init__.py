"""Alerts told to people (what is told `app.core.alerts` decides): words, bodies, channels, deliveries."""
