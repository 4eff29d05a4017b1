"""docs/reference, written from the code: `python -m tests.reference`, one module for each page."""
