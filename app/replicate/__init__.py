"""Topics copied from cluster to cluster: the definition of a route, and its view."""
