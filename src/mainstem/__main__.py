"""`python -m mainstem` is the `mainstem` command."""

import sys

from mainstem.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
