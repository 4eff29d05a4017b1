"""Routes of a worker; what the leader tells of lines that nobody writes, and of what readers need."""
