"""Which worker runs which job: the leader's rounds, what they decide by, limits divided."""
