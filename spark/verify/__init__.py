"""Comparing a topic with its copy, or with its archive, record by record (`compare`)."""
