"""The client of the stream contract: its book, requests and results."""
