"""`hogwild` and `python -m hogwild`: the command line, which takes a moment to import, and that may be interrupted."""

import sys


def command() -> int:
    """Run the command of this process's arguments; returns its exit status, as `hogwild.cli.main` has them."""
    try:
        from hogwild.cli import main
    except KeyboardInterrupt:
        return 130  # what it would have returned
    return main()


if __name__ == "__main__":
    sys.exit(command())
