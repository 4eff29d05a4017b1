"""Audit findings sent to Alertmanager or a webhook: definitions, rules, and the delivery of notices."""
