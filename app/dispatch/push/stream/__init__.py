"""The stream contract's client: book, requests, results."""
