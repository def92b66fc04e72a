"""`python -m mandamus`: the command line."""

from mandamus.cli.main import run

if __name__ == "__main__":
    run()
