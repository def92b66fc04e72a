"""`python -m mandamus`: the command line."""

from mandamus.cli.main import run

run()
