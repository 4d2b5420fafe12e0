"""Rows and originals of invented figures, and a small model whose weights nobody trained."""

import numpy as np
import torch
from transformers import BertConfig, BertModel

from attnbench.core.evidence import Evidence
from attnbench.core.stats import paired
from attnbench.features.quality.words import told, with_ranks

WORDS = 50


def small_model(layers=2, seed=0):
    """A BERT of two heads of eight channels, its weights large enough for scores to matter."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        attn_implementation="sdpa",
        initializer_range=0.4,
    )
    return BertModel(config, add_pooling_layer=False).eval()


def some_ids(lengths=(3, 9, 9, 17, 30), seed=0):
    """Texts as numbers of words."""
    chance = np.random.default_rng(seed)
    return [chance.integers(WORDS, size=n).tolist() for n in lengths]


def original(tokens=(20,) * 4 + (200,) * 10, kinds=("paraphrase", "unrelated")):
    """Of four short texts in two pairs, and ten long ones."""
    pairs = [{"a": 0, "b": 1, "kind": kinds[0]}, {"a": 2, "b": 3, "kind": kinds[1]}]
    floor = {**step(0.8, seq=256), "seq": 256}
    return {
        "tokens": list(tokens),
        "pairs": pairs,
        "similarities": [0.8, 0.1],
        "floor": [floor],
        "plain": {"relative": 1e-7, "max": 1e-7, "worst_row": 2e-7, "cosine": 1.0},
    }


def step(ratio, seq=256, spread=0.002):
    """Twenty pairs whose median ratio is this."""
    logs = np.log(ratio) + spread * np.linspace(-1, 1, 20)
    found = paired(logs.tolist(), 0.01)
    return {
        "seq": seq,
        "comparison": found.to_dict(),
        "a_s": [0.1] * 20,
        "b_s": [0.1 * ratio] * 20,
        "stop": "decided",
    }


def row(variant, cosines, computes="approximates softmax", ratio=None, **more):
    """A variant that was measured, on the texts of :func:`original`."""
    made = {
        "variant": variant,
        "family": "lowrank",
        "computes": computes,
        "status": "measured",
        "reason": "",
        "remedy": "",
        "amiss": [],
        "together": True,
        "left_out": {},
        "steps": [] if ratio is None else [step(ratio)],
        "cosines": list(cosines),
        "similarities": [0.7, 0.2],
        "error": {"relative": 1e-7, "max": 1e-7, "worst_row": 1e-7, "cosine": 1.0},
    }
    return {**made, **more}


def flat(value, spread=0.0, texts=14):
    """As many cosines, the same but for a spread."""
    return [value + spread * (n % 5 - 2) for n in range(texts)]


def evidence(*rows):
    """What ``quality model`` would have kept of these."""
    whole = original()
    made = {
        "machine": {"name": "slow-box-2c"},
        "started": "2026-01-02T03:04:05+00:00",
        "command": "attnbench quality model",
        "original": whole,
        "model": {"name": "all-MiniLM-L6-v2"},
        "texts": {"source": "built in", "digest": "abc", "texts": 14},
        "wanted": {"dtype": "float32", "device": "cpu", "seq": [256]},
    }
    return Evidence("model", made, with_ranks([told(each, whole) for each in rows], whole))


def real_row(variant, source, skill, **more):
    """A row of ``quality real``."""
    return {
        "variant": variant,
        "family": "lowrank",
        "computes": "approximates softmax",
        "source": source,
        "status": "measured",
        "reason": "",
        "remedy": "",
        "distance": 1 - skill,
        "cosine": 0.9,
        "skill": skill,
        "entropy": 0.4,
        "problem": "b4 h12/12 n256",
        **more,
    }
