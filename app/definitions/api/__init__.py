"""REST and command line of definitions: validate, plan, deploy, diff, export."""
