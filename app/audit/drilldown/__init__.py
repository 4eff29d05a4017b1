"""Which records are missing, doubled or altered: found, named, copied again."""
