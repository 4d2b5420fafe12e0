"""Time, memory and error of the variants against length: see features/commits/suite.py."""

from asv_runner.benchmarks import benchmark_types

from attnbench.features.commits import suite

REQUEST = suite.current_request()
param_names = ["variant", "seq", "phase"]
params = REQUEST.parameters
version = suite.VERSION
timeout = suite.LIMIT_S
benchmark_types.append(suite.FigureBenchmark)


def setup_cache():
    return suite.measure_commit(REQUEST)


def time(cache, variant, seq, phase):
    return suite.figure(cache, (variant, seq, phase), "time")


def memory(cache, variant, seq, phase):
    return suite.figure(cache, (variant, seq, phase), "memory")


def error(cache, variant, seq, phase):
    return suite.figure(cache, (variant, seq, phase), "error")


setup_cache.timeout = suite.LIMIT_S
time.version, time.unit, time.pretty_name = suite.TIME_VERSION, "seconds", "time of a call"
time.rounds = suite.PROCESSES if REQUEST.interleaved else 1
memory.unit, memory.pretty_name = "bytes", "peak memory above the inputs"
error.unit, error.pretty_name = "relative error", "largest relative error of output and gradients"
