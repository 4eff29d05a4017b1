"""The web side: REST API, console and metrics."""
