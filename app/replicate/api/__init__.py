"""The REST interface and the command line of routes."""
