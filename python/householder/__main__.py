"""``python -m householder``."""

import sys

from householder.cli import main

if __name__ == "__main__":
    sys.exit(main())
