"""The API assembled, the console's pages and assets, metrics."""
