"""Common parts of all kinds of jobs: the pump's interface, start positions, the state of topics."""
