"""Placement: the leader's rounds decide which worker runs which job, and divide limits among workers."""
