"""switchyard.yaml and definitions as people write them: texts with positions, problems with remedies,
fields."""
