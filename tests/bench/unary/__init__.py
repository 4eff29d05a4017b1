"""Unary pushes of one partition to a receiver in Go, by Switchyard and by its peers."""
