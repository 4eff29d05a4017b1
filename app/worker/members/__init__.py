"""Which workers live: heartbeats, ended processes, addresses, requests between workers."""
