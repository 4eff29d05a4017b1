"""The routes of a worker, and the leader's publications about unowned copies and consumers' positions."""
