"""The routes of a worker; and what the leader publishes about copies without an owner and about consumers'
positions.
"""
