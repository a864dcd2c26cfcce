"""`python -m rlpto`: the command for when `rlpto` is not on PATH."""

from rlpto.cli.main import run

if __name__ == "__main__":
    run()
