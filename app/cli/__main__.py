"""`python -m app.cli` is `switchyard`, where the script is not installed."""

from app.cli.main import main

if __name__ == "__main__":  # Faust imports all modules of the application
    main()
