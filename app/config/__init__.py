"""switchyard.yaml and whatever else people write: trees with places, problems with remedies, fields."""
