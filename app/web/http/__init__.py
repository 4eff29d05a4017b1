"""HTTP for all routes: access, bodies, problems, schemas, OpenAPI, operations, and forwarding to other
workers."""
