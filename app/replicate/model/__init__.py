"""The topics that a route copies, their copies' names, loop proofs, and needs of destination topics. Pure."""
