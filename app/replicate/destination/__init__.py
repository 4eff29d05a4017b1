"""A copy's way into its destination: behind a former owner, in order, compared again."""
