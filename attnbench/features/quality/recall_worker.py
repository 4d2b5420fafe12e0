"""One training in a process of its own, from its seed to its last checkpoint.

A training goes on until it has its steps and, where there is a budget of seconds, until its own
clock has passed that: it answers for both. The rate of learning is constant after its warm-up, so
that a checkpoint is what a shorter training would have ended with. The clock is the processor's
where one thread computes on a CPU; it is the wall's everywhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnbench.core.device import device_for
from attnbench.core.format import roughly
from attnbench.core.wire import convert
from attnbench.features.quality import recall
from attnbench.features.quality.recall import CAUSAL, NOTHING, Setting, TrainingJob, stream
from attnbench.gate.inputs import tensors_of
from attnbench.models.attention import Built
from impls.loading import load_function
from impls.spec import Variant

Core = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``core(q, k, v)``, causal, [b, h, n, d] each."""


class RecallLayer(nn.Module):
    """Attention on pairs of neighbours, then an MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int, core: Core) -> None:
        super().__init__()
        self.heads, self.core = heads, core
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into = nn.Linear(2 * width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x_bnE: Tensor) -> Tensor:
        """The tokens after attention and MLP."""
        y_bnE = self.norm(x_bnE)
        before_bnE = F.pad(y_bnE[:, :-1], (0, 0, 1, 0))
        heads_bnx = self.into(torch.cat((y_bnE, before_bnE), -1)).chunk(3, -1)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in heads_bnx)
        out_bhnd = self.core(q, k, v)
        out_bhnd = F.layer_norm(out_bhnd, out_bhnd.shape[-1:])
        x_bnE = x_bnE + self.out(out_bhnd.transpose(1, 2).flatten(2))
        return x_bnE + self.down(F.gelu(self.up(self.norm_mlp(x_bnE))))


class RecallModel(nn.Module):
    """Tokens to logits of the values; the first weights follow from the seed alone."""

    def __init__(self, setting: Setting, core: Core, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        width = setting.width
        self.embedding = nn.Embedding(setting.keys + setting.values, width)
        layers = [RecallLayer(width, setting.heads, core) for _ in range(setting.layers)]
        self.layers, self.norm = nn.Sequential(*layers), nn.LayerNorm(width)
        self.head = nn.Linear(width, setting.values, bias=False)
        self.to(setting.device)

    def forward(self, tokens_bn: Tensor) -> Tensor:
        """[b, n, V]"""
        logits: Tensor = self.head(self.norm(self.layers(self.embedding(tokens_bn))))
        return logits


DECAY, CLIP = 0.1, 1.0
"""AdamW's decay of the weights, and the largest norm of a gradient."""


class Training:
    """A model, its optimizer, and its clock."""

    def __init__(self, job: TrainingJob) -> None:
        self.job, self.setting = job, job.setting
        built = Built(job.variant)
        self.model = RecallModel(self.setting, lambda q, k, v: built(q, k, v, CAUSAL), job.seed)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.setting.rate, weight_decay=DECAY
        )
        self.stream, tests = stream(job.seed, recall.TRAINING), stream(job.seed, recall.TESTING)
        self.tests = {
            pairs: self._on_device(*self.setting.draw(self.setting.tests, tests, pairs))
            for pairs in self.setting.pairs
        }
        one_thread = job.threads == 1 and self.setting.device == "cpu"
        self.clock = process_time if one_thread else perf_counter
        self.steps_s: list[float] = []
        self.clock_s, self.loss = 0.0, math.nan

    def _on_device(self, *arrays: np.ndarray) -> list[Tensor]:
        return [torch.from_numpy(x).to(self.setting.device) for x in arrays]

    def stages(self) -> Iterator[dict[str, Any]]:
        """The size of the variant's state, a checkpoint where a budget is over, and the end."""
        steps, limit_s = self.setting.steps, self.job.limit_s
        yield {"state_numbers": state_numbers(self.job.variant, self.setting)}
        time_over, why = self.job.seconds is None, ""
        while not why and not (time_over and len(self.steps_s) >= steps):
            self._step()
            done = len(self.steps_s)
            if not math.isfinite(self.loss):
                why = f"its loss is not finite from step {done} on"
                break
            due = not time_over and self.clock_s >= (self.job.seconds or 0.0)
            time_over = time_over or due
            if due or done == steps:
                yield {"checkpoint": self._checkpoint(in_time=due)}
            if self.clock_s > limit_s and done < steps:
                why = f"it had taken {done} of {steps} steps when its {roughly(limit_s)} were over"
        yield {"status": "cut_short" if why else "trained", "reason": why}

    def _checkpoint(self, *, in_time: bool) -> dict[str, Any]:
        return {
            "step": len(self.steps_s),
            "seconds": self.clock_s,
            "loss": self.loss,
            "step_s": median(self.steps_s[1:] or self.steps_s),
            "accuracy": {str(pairs): self.accuracy(pairs) for pairs in self.tests},
            "in_time": in_time,
        }

    def _step(self) -> None:
        start = self.clock()
        batch = self.setting.draw(self.setting.batch, self.stream)
        tokens_bn, targets_bn = self._on_device(*batch)
        loss = F.cross_entropy(
            self.model(tokens_bn).flatten(0, 1), targets_bn.flatten(), ignore_index=NOTHING
        )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        for group in self.optimizer.param_groups:
            warm = (len(self.steps_s) + 1) / self.setting.warmup
            group["lr"] = self.setting.rate * min(1.0, warm)
        self.optimizer.step()
        self.loss = float(loss.detach())  # waits for a GPU, too
        device_for(self.setting.device).synchronize()
        self.steps_s.append(self.clock() - start)
        self.clock_s += self.steps_s[-1]

    def accuracy(self, pairs: int) -> float:
        """The share of the test's questions that are answered right."""
        tokens_bn, targets_bn = self.tests[pairs]
        self.model.eval()
        with torch.no_grad():
            answers = [self.model(x).argmax(-1) for x in tokens_bn.split(self.setting.batch)]
        self.model.train()
        questions = targets_bn != NOTHING
        right = (torch.cat(answers) == targets_bn) & questions
        return float(right.sum() / questions.sum())


def state_numbers(variant: Variant, setting: Setting) -> int:
    """The numbers that a decoder keeps a head: its own memory, or keys and values of all tokens."""
    problem = setting.problem.with_(batch=1, q_len=1, phase="decode")
    if variant.supports(problem) is None:
        call = load_function(variant.build)(problem, **variant.chosen)
        if hasattr(call, "remember"):
            shape = (1, problem.kv_heads, problem.kv_len, problem.head_dim)
            with torch.no_grad():
                tokens = torch.zeros(shape, device=problem.device)
                memory = tensors_of(call.remember(tokens, tokens))
                return sum(x.numel() for x in memory) // problem.kv_heads
    return problem.kv_len * (problem.head_dim + problem.v_head_dim)


def train(question: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The stages of a training."""
    values = question["job"]
    variant, setting = convert(values["variant"], Variant), convert(values["setting"], Setting)
    return Training(TrainingJob(**{**values, "variant": variant, "setting": setting})).stages()
