"""How REST is answered: access, bodies, problems, schemas, OpenAPI, operations, other workers asked."""
