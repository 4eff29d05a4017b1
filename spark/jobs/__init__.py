"""One job a module, with `DESCRIPTION`, `EXAMPLES`, `add_arguments(parser)` and `run(options)`, which returns
the exit code.

A module only parses, reads, calls the functions of its topic, and writes. The result goes to standard output
as one JSON object, messages to standard error.
"""
