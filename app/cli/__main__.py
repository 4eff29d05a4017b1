"""`python -m app.cli` is `switchyard`, where the script is not installed."""

from app.cli.main import main

main()
