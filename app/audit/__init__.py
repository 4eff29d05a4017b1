"""Audits: records counted tier by tier, compared, and what did not arrive named. See `app.audit.counts`."""
