"""Workloads of several regions: the definition, topology (which regions, what is copied), view."""
