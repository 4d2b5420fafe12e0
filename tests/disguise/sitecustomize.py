"""Found by every Python that a disguised test starts: the processor's name and cores are others."""

import os
import re
from pathlib import Path

CPUINFO = "/proc/cpuinfo"
read_text, cores = Path.read_text, set(range(int(os.environ["DISGUISE_CORES"])))


def of_another_machine(path, *how, **more):
    """A file's text; of the processors' file the model's name is another, or not there."""
    text = read_text(path, *how, **more)
    if str(path) == CPUINFO:
        name = os.environ["DISGUISE_CPU"]
        text = re.sub(r"^model name\s*:.*\n", "", text, flags=re.MULTILINE)
        text = f"model name\t: {name}\n{text}" if name else text
    return text


def keep(_, some):
    """Processes are bound to cores that may not be there, and so to none."""
    cores.clear()
    cores.update(some)


Path.read_text = of_another_machine
os.sched_getaffinity = lambda _: set(cores)
os.sched_setaffinity = keep
