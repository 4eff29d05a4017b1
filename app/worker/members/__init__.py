"""Who lives: heartbeats, processes that ended, addresses, requests between workers."""
