"""``python -m attnbench`` from a bare checkout."""

import sys

from attnbench.cli import main

sys.exit(main())
