"""All kinds of definitions: the registry, the plan of a deployment, checks of schemas."""
