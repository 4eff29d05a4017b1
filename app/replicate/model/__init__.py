"""The topics that a route copies, the names of the copies, the proof that routes make no loop, and the needs
of destination topics. Pure.
"""
