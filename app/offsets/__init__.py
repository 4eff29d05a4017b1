"""Regions: what other regions know, where consumers go on elsewhere, groups that are kept in step there."""
