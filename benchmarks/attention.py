"""Time, memory, error and energy of the variants against length: see features/commits/suite.py."""

from pathlib import Path

from attnbench.features.commits import sitting, suite
from attnbench.features.commits import suite as command

ASKED = command.handed_on()
param_names = list(suite.PARAMETERS)
params = suite.parameters("time", ASKED.device)
version = suite.VERSION
timeout = suite.LIMIT_S


def setup_cache():
    return sitting.measured(ASKED, Path.cwd())


def time(cache, variant, seq, phase):
    pass


time.version = suite.TIME_VERSION


def memory(cache, variant, seq, phase):
    pass


def error(cache, variant, seq, phase):
    pass


setup_cache.timeout = suite.LIMIT_S

if ASKED.energy:

    def energy(cache, variant, seq, phase):
        pass

    energy.params = suite.parameters("energy", ASKED.device)
