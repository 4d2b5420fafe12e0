"""What asv runs: commits are measured with the attnbench that this file comes with."""

import sys
from pathlib import Path

sys.path.insert(0, next(str(p) for p in Path(__file__).parents if (p / "attnbench").is_dir()))
