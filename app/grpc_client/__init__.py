"""A gRPC client on HTTP/2, for many small calls at little cost. The room knows nothing of Switchyard."""
