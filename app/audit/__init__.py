"""Audits count records tier by tier, compare the counts, and name what did not arrive: see
`app.audit.counts`."""
