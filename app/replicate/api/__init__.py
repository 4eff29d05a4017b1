"""Routes by REST and on the command line."""
