"""What capturing costs: ``python proofs/capture.py``.

Training steps of a small Llama, its attention in torch's function and eager, with and without its
calls being recorded: pairs in random order in one process, where without means that torch's
functions are its own. The median of the ratios, with its 95 % interval by order statistics. Limit:
a step is slowed down by 5 % at the most. One thread. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import math
import os
import random
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attnbench.core.settings import Settings, apply, environment  # noqa: E402

LIMIT = 0.05
PAIRS = 100
BATCH, TOKENS = 4, 128


def training(attention: str) -> Any:
    """A function that makes one step."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=1000,
        attn_implementation=attention,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 1000, (BATCH, TOKENS))

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ratios(attention: str) -> tuple[list[float], float, int]:
    """Of each pair, with over without; the median step without; calls recorded."""
    from attnbench.models.capture.capture import Session
    from attnbench.models.capture.recorder import Recorder

    session = Session(Recorder())
    session.begin(running=True)
    step = training(attention)

    def timed() -> float:
        begun = perf_counter()
        step()
        return perf_counter() - begun

    def paused() -> float:
        with session.paused():
            return timed()

    sides = [timed, paused]
    for _ in range(5):
        paused()
        timed()
    found, plain = [], []
    for _ in range(PAIRS):
        random.shuffle(sides)
        took = {side: side() for side in sides}
        found.append(took[timed] / took[paused])
        plain.append(took[paused])
    calls = session.recorder.calls(complete=True)
    session.end()
    return found, sorted(plain)[PAIRS // 2], sum(s.calls for s in calls.sites)


def main() -> int:
    """Print a line each; 1 where the limit is passed."""
    if os.environ.get("OMP_NUM_THREADS") != "1":  # what counts only before torch is imported
        os.environ.update(environment(threads=1))
        os.execv(sys.executable, [sys.executable, *sys.argv])
    apply(Settings(threads=1))
    worst = 0.0
    for attention in ("sdpa", "eager"):
        found, plain, calls = ratios(attention)
        found.sort()
        away = math.ceil(0.98 * math.sqrt(PAIRS))
        low, mid, high = (found[PAIRS // 2 + n] - 1 for n in (-away, 0, away))
        worst = max(worst, mid)
        print(
            f"{attention:6} a step of {plain * 1e3:.1f} ms, {calls} calls recorded: slower by "
            f"{mid:+.2%} [{low:+.2%}, {high:+.2%}]; limit {LIMIT:.0%}"
        )
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
