"""One training, from its seed to its last checkpoint.

Steps are counted and timed; looking at the test is neither. A training goes on until it has its
steps and, where there is a budget of seconds, until its own clock has passed that, so that one
training answers for both budgets. The rate of learning is constant after its warm-up, so that a
checkpoint is what a shorter training would have ended with.

The clock is the processor's where one thread computes on a CPU, so that whatever else runs on the
machine takes nobody's steps; it is the wall's everywhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnbench.core import settings
from attnbench.features.quality.recall import (
    CAUSAL,
    NOTHING,
    TESTING,
    TRAINING,
    Batch,
    Setting,
    TrainingJob,
    stream,
)
from attnbench.models.attention import Built
from impls.loading import load_function
from impls.spec import Variant

Core = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``core(q, k, v)``, causal, [b, h, n, d] each."""


class Layer(nn.Module):
    """Attention on pairs of neighbours, then an MLP; both beside the tokens' own way."""

    def __init__(self, width: int, heads: int, core: Core) -> None:
        super().__init__()
        self.heads, self.core = heads, core
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into = nn.Linear(2 * width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x_bnE: Tensor) -> Tensor:
        """The tokens, with what they recalled."""
        x_bnE = x_bnE + self.attended(self.norm(x_bnE))
        hidden = F.gelu(self.up(self.norm_mlp(x_bnE)))
        out: Tensor = x_bnE + self.down(hidden)
        return out

    def attended(self, y_bnE: Tensor) -> Tensor:
        """What the core makes of a token and the one before it."""
        before_bnE = F.pad(y_bnE[:, :-1], (0, 0, 1, 0))
        heads_bnx = self.into(torch.cat((y_bnE, before_bnE), -1)).chunk(3, -1)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in heads_bnx)
        out_bhnd = self.core(q, k, v)
        out_bhnd = F.layer_norm(out_bhnd, out_bhnd.shape[-1:])
        out: Tensor = self.out(out_bhnd.transpose(1, 2).flatten(2))
        return out


class RecallModel(nn.Module):
    """Tokens to logits of the values."""

    def __init__(self, setting: Setting, core: Core) -> None:
        super().__init__()
        width = setting.width
        self.embedding = nn.Embedding(setting.task.tokens, width)
        layers = [Layer(width, setting.heads, core) for _ in range(setting.layers)]
        self.layers, self.norm = nn.Sequential(*layers), nn.LayerNorm(width)
        self.head = nn.Linear(width, setting.values, bias=False)

    def forward(self, tokens_bn: Tensor) -> Tensor:
        """[b, n, V]"""
        logits: Tensor = self.head(self.norm(self.layers(self.embedding(tokens_bn))))
        return logits


def made(setting: Setting, core: Core, seed: int) -> RecallModel:
    """A model whose first values follow from the seed alone."""
    torch.manual_seed(seed)
    return RecallModel(setting, core).to(setting.device)


Tell = Callable[[Mapping[str, Any]], None]
DECAY, CLIP = 0.1, 1.0
"""Of the weights (AdamW), and the longest that a gradient may be."""


class Training:
    """A model, its optimizer, and its clock."""

    def __init__(self, job: TrainingJob) -> None:
        settings.apply(settings.Settings(threads=job.threads))
        self.job, self.setting = job, job.setting
        built = Built(job.variant)
        self.model = made(self.setting, lambda q, k, v: built(q, k, v, CAUSAL), job.seed)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.setting.rate, weight_decay=DECAY
        )
        self.stream = stream(job.seed, TRAINING)
        tests, task = stream(job.seed, TESTING), self.setting.task
        self.tests = {
            pairs: self._there(task.drawn(pairs, self.setting.tests, tests))
            for pairs in self.setting.pairs
        }
        alone = job.threads == 1 and self.setting.device == "cpu"
        self.clock = process_time if alone else perf_counter
        self.steps_s: list[float] = []
        self.clock_s, self.wall_s, self.losses = 0.0, 0.0, [math.nan]

    def run(self, tell: Tell) -> str:
        """Tell each checkpoint; why it ended before its time, or nothing."""
        every = -(-self.setting.steps // self.setting.looks)
        tell(
            {
                "parameters": sum(x.numel() for x in self.model.parameters()),
                "state_numbers": kept(self.job.variant, self.setting),
            }
        )
        timely = self.job.seconds is None
        while not (timely and len(self.steps_s) >= self.setting.steps):
            self.step()
            done = len(self.steps_s)
            if not math.isfinite(self.losses[-1]):
                return f"its loss is not finite from step {done} on"
            due = not timely and self.clock_s >= (self.job.seconds or 0.0)
            if due or done == self.setting.steps or done % every == 0:
                tell({"checkpoint": {**self.checkpoint(), "in_time": due}})
            timely = timely or due
            if self.clock_s > self.job.limit_s and done < self.setting.steps:
                return (
                    f"it had taken {done} of {self.setting.steps} steps when its "
                    f"{self.job.limit_s:.0f} s were over"
                )
        return ""

    def step(self) -> None:
        """One step on fresh sequences."""
        start, wall = self.clock(), perf_counter()
        task, done = self.setting.task, len(self.steps_s)
        tokens_bn, targets_bn = self._there(task.mixed(self.setting.batch, self.stream))
        loss = F.cross_entropy(
            self.model(tokens_bn).flatten(0, 1), targets_bn.flatten(), ignore_index=NOTHING
        )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        for group in self.optimizer.param_groups:
            group["lr"] = self.setting.rate * min(1.0, (done + 1) / self.setting.warmup)
        self.optimizer.step()
        self.losses.append(float(loss.detach()))  # waits for a GPU, too
        self._synchronize()
        self.steps_s.append(self.clock() - start)
        self.clock_s += self.steps_s[-1]
        self.wall_s += perf_counter() - wall

    def checkpoint(self) -> dict[str, Any]:
        """Where it stands: what it has taken, and how often it is right in the test."""
        return {
            "step": len(self.steps_s),
            "seconds": self.clock_s,
            "wall_s": self.wall_s,
            "loss": self.losses[-1],
            "step_s": median(self.steps_s[1:] or self.steps_s),
            "accuracy": {str(pairs): self.accuracy(pairs) for pairs in self.setting.pairs},
        }

    def accuracy(self, pairs: int) -> float:
        """The share of the test's questions that are answered right."""
        tokens_bn, targets_bn = self.tests[pairs]
        self.model.eval()
        with torch.no_grad():
            parts = zip(
                tokens_bn.split(self.setting.batch),
                targets_bn.split(self.setting.batch),
                strict=True,
            )
            right = [self.model(tokens).argmax(-1) == targets for tokens, targets in parts]
        self.model.train()
        asked = targets_bn != NOTHING
        return float((torch.cat(right) & asked).sum() / asked.sum())

    def _there(self, batch: Batch) -> tuple[Tensor, Tensor]:
        tokens_bn, targets_bn = (torch.from_numpy(x).to(self.setting.device) for x in batch)
        return tokens_bn, targets_bn

    def _synchronize(self) -> None:
        if self.setting.device.startswith("cuda"):
            torch.cuda.synchronize(self.setting.device)


def kept(variant: Variant, setting: Setting) -> int:
    """The numbers that this variant's decoder keeps for each head after a sequence.

    Its own memory where it has one; else keys and values of all tokens.
    """
    problem = setting.problem.with_(batch=1, q_len=1, phase="decode")
    width = problem.head_dim + problem.v_head_dim
    if variant.supports(problem) is None:
        call = load_function(variant.build)(problem, **variant.chosen)
        if hasattr(call, "remember"):
            shape = (1, problem.kv_heads, problem.kv_len, problem.head_dim)
            with torch.no_grad():
                tokens = torch.zeros(shape, device=problem.device)
                return _numbers(call.remember(tokens, tokens)) // problem.kv_heads
    return problem.kv_len * width


def _numbers(memory: Any) -> int:
    """How many lie in the tensors of a memory."""
    if isinstance(memory, Tensor):
        return memory.numel()
    if isinstance(memory, Mapping):
        memory = memory.values()
    return sum(map(_numbers, memory)) if hasattr(memory, "__iter__") else 0
