"""Made-up rows of evidence, and a small model whose weights nobody trained."""

from dataclasses import asdict

import numpy as np
import torch
from transformers import BertConfig, BertModel

from attnbench.core.evidence import Evidence
from attnbench.features.quality.recall import Setting
from tests.times import pairs_answer

WORDS = 50
MADE = {"machine": {"name": "a-machine"}, "started": "2026-01-02T03:04:05+00:00"}
OKAY = {"status": "measured", "reason": "", "remedy": ""}
EXACT = {"relative": 1e-7, "max": 1e-7, "worst_row": 2e-7, "cosine": 1.0}


def small_model(layers=2):
    """A BERT of two heads of eight channels, its weights large enough for scores to matter."""
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64}
    config = BertConfig(**sizes, attn_implementation="sdpa", initializer_range=0.4)
    return BertModel(config, add_pooling_layer=False).eval()


def last_head(problem):
    """A variant that is wrong in its last head, which hands its values on."""

    def attend(q, k, v):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return torch.cat([out[:, :-1], v[:, -1:]], 1)

    return attend


def no_numbers(problem):
    return lambda q, k, v: v * torch.nan


def original(tokens=(20,) * 4 + (200,) * 10):
    """Four short texts and ten long ones."""
    return {"tokens": list(tokens), "floor": [step(0.8)], "plain": EXACT}


def step(ratio, seq=256):
    """Twenty pairs whose median ratio is this."""
    logs = np.log(ratio) + 0.002 * np.linspace(-1, 1, 20)
    return {"seq": seq, **pairs_answer(logs.tolist(), a_s=0.1, b_s=0.1 * ratio)}


def row(variant, cosines, computes="approximates softmax", ratio=None, **more):
    """A variant that was measured in the model, on the texts of :func:`original`."""
    about = {"variant": variant, "family": "lowrank", "computes": computes, **OKAY, "amiss": []}
    steps = [] if ratio is None else [step(ratio)]
    return {**about, "steps": steps, "cosines": list(cosines), "error": EXACT, **more}


def flat(value, spread=0.0, texts=14):
    """As many cosines, the same but for a spread."""
    return [value + spread * (n % 5 - 2) for n in range(texts)]


QUALITY = {"status": "measured", "reason": "", "cosines": flat(0.98), "error": EXACT}
"""Of a variant in the trained model, as its process tells it."""


def passage(number, loss=3.0, seq=256, ratio=1.0, **more):
    """A passage of a language model with a variant in it, as its process tells it."""
    loss += 0.1 * number
    times = {"step_s": [1.0, ratio * (1 + 0.01 * number)], "token_s": [[0.1, 0.1 * ratio]] * 3}
    about = {"seq": seq, "passage": number, "same": 32, "found": [True] * 4, "layers": {}}
    return {**about, **times, "loss": loss, **more}


def evidence(*rows):
    """The evidence that ``quality model`` keeps of these."""
    made = {**MADE, "command": "attnbench quality model", "original": original()}
    made |= {"model": {"name": "all-MiniLM-L6-v2"}}
    made |= {"texts": {"source": "built in", "digest": "abc", "texts": 14}}
    made |= {"wanted": {"dtype": "float32", "device": "cpu", "seq": [256]}}
    return Evidence("model", made, rows)


def real_row(variant, source, skill, **more):
    about = {"variant": variant, "family": "lowrank", "computes": "approximates softmax", **OKAY}
    about |= {"source": source, "skill": skill, "entropy": 0.4, "problem": "b4 h12/12 n256"}
    return {**about, **more}


SETTING = Setting(seq=40, pairs=(4, 8), width=16, steps=100)


def look(at, accuracy, seconds=1.0, in_time=False, step_s=0.01):
    right = {str(pairs): share for pairs, share in accuracy.items()}
    times = {"step": at, "seconds": seconds, "loss": 0.5, "step_s": step_s, "in_time": in_time}
    return {**times, "accuracy": right}


def training(variant="sdpa", seed=0, steps=None, time=None, step_s=0.01, **more):
    """``steps`` and ``time``: accuracies by pairs when each budget was over."""
    curve = [look(50, dict.fromkeys(SETTING.pairs, 0.1), 0.5, step_s=step_s)]
    if time is not None:
        curve.append(look(80, time, 0.9, in_time=True, step_s=step_s))
    if steps is not None:
        curve.append(look(100, steps, 1.0, step_s=step_s))
    about = {"variant": variant, "computes": "softmax", "family": "dense", **OKAY}
    about |= {"setting": asdict(SETTING), "seed": seed, "seconds": 0.9, "status": "trained"}
    return {**about, "state_numbers": 640, "curve": curve, **more}


def trainings(variant, *accuracies, **more):
    """A training a seed, as good after its steps as in its time."""
    shares = [dict(zip((4, 8), each, strict=True)) for each in accuracies]
    return [training(variant, seed, each, each, **more) for seed, each in enumerate(shares)]


def recall_evidence(*more, seeds=3, **made):
    """The evidence that ``quality recall`` keeps: of sdpa, and more."""
    facts = {**MADE, "command": "attnbench quality recall", "baseline": "sdpa"}
    facts |= {"seeds": list(range(seeds)), "stopped": False, "budgets": {SETTING.slug: 0.9}, **made}
    return Evidence("recall", facts, [*trainings("sdpa", *[(1.0, 0.998)] * seeds), *more])
