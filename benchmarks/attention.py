"""Time, memory, error and energy of the variants against length: see features/commits/suite.py."""

from pathlib import Path

from attnbench.features.commits import measurement, suite

REQUEST = suite.current_request()
param_names = list(suite.PARAMETERS)
params = suite.parameters("time", REQUEST)
version = suite.VERSION
timeout = suite.LIMIT_S


def setup_cache():
    return measurement.measure_all(REQUEST, Path.cwd())


def time(cache, variant, seq, phase):
    pass


time.version = suite.TIME_VERSION


def memory(cache, variant, seq, phase):
    pass


def error(cache, variant, seq, phase):
    pass


setup_cache.timeout = suite.LIMIT_S

if REQUEST.energy:

    def energy(cache, variant, seq, phase):
        pass

    energy.params = suite.parameters("energy", REQUEST)
