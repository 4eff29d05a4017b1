"""One cluster: connection, commits, topics and their settings, permissions, tails of topics."""
