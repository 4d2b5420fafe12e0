"""What asv runs: commits are measured with the attnbench that this file comes with.

In a clone ``impls``, what is measured, comes from the environment that asv made for the commit. So
the clone is on the path only while ``attnbench`` is looked for, and ``attnbench`` finds its own
modules where it was found itself. In a repository of somebody's own ``impls`` is attnbench's.
"""

import json
import os
import sys
from pathlib import Path

CHECKOUT = next(p for p in Path(__file__).resolve().parents if (p / "attnbench").is_dir())
REQUEST = json.loads(os.environ.get("ATTNBENCH_HISTORY", "{}"))
OWN = os.environ.get("ASV_ENV_TYPE", "existing") == "existing" or bool(REQUEST.get("root"))

if not OWN:
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != CHECKOUT]
sys.path.insert(0, str(CHECKOUT))
try:
    import attnbench
    from attnbench.features.commits import measurement
finally:
    if not OWN:
        sys.path.remove(str(CHECKOUT))

if Path(attnbench.__file__).resolve().parents[1] != CHECKOUT:
    raise ImportError(f"attnbench was loaded from {attnbench.__file__} and not from {CHECKOUT}")
if not OWN and "impls" in sys.modules:
    raise ImportError(f"impls was loaded from {CHECKOUT}, and not from the commit's environment")
measurement.register()
