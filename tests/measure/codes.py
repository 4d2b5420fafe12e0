"""Texts of variants that many cells are made of, and what no unmeasured record has."""

HONEST = "build = right\n"
COST = "from impls.cost import Cost\ndef cost(problem): return Cost(1000, 2000, {peak})\n"


def raising(text, where="build"):
    if where == "build":
        return f"def build(problem):\n    {text}\n"
    return f"def build(problem):\n    def attend(q, k, v):\n        {text}\n    return attend\n"


def unmeasured(record):
    assert record.time is None
    assert record.memory is None
    assert record.reason
