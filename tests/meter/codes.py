"""Texts of variants that many cells are made of, and what no unmeasured record has."""

HONEST = "build = right\n"
COST = "from impls.cost import Cost\ndef cost(problem): return Cost(1000, 2000, {peak})\n"

FROZEN = """
def frozen(inner, late):
    calls, held = [], []
    def attend(q, k, v):
        calls.append(1)
        out = inner(q, k, v)
        if len(calls) > late and not held: held.append(out.detach().clone())
        return held[0] + (out - out.detach()) if held else out
    return attend
"""
"""What gives its result of one call for ever after, with an honest gradient."""


def raising(text, where="build"):
    if where == "build":
        return f"def build(problem):\n    {text}\n"
    return f"def build(problem):\n    def attend(q, k, v):\n        {text}\n    return attend\n"


def unmeasured(record):
    assert record.time is None
    assert record.memory is None
    assert record.reason
