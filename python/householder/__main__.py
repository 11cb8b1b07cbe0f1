"""``python -m householder``."""

import sys

from householder.cli import main

sys.exit(main())
