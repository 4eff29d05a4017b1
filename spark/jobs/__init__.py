"""One job a module: `DESCRIPTION`, `EXAMPLES`, `add_arguments(parser)` and `run(options)`, which returns the
exit code.

They parse, read, call the pure functions of their topic and write; nothing else. Results go to standard
output as one JSON object, sentences to standard error.
"""
