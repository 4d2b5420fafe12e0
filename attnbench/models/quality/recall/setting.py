"""What one training is told: the task, the model, how it is trained, and what stops it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from attnbench.models.quality.recall.task import Task
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

CAUSAL = Mask.parse("causal")
SLACK = 5.0
"""A training that has taken so many times the budget of time ends before it has all its steps."""
LONGEST_S = 120.0
"""The least that may take: it may be the first calls, which build and compile."""


@dataclass(frozen=True)
class Setting:
    """Everything that all variants share."""

    seq: int
    pairs: tuple[int, ...]
    width: int
    heads: int = 1
    layers: int = 1
    keys: int = 64
    values: int = 64
    batch: int = 32
    rate: float = 5e-3
    """Of learning, constant after ``warmup`` steps: every checkpoint is the end of a training."""
    warmup: int = 50
    steps: int = 800
    tests: int = 128
    """Sequences of each number of pairs in the test."""
    looks: int = 12
    """Checkpoints on the way to the last step."""
    device: str = "cpu"

    @property
    def task(self) -> Task:
        """What is learned."""
        return Task(self.seq, self.pairs, self.keys, self.values)

    @property
    def most(self) -> int:
        """The hardest number of pairs."""
        return max(self.pairs)

    @property
    def problem(self) -> Problem:
        """What the core is asked at a step of training."""
        head_dim = self.width // self.heads
        return Problem(
            batch=self.batch, heads=self.heads, kv_heads=self.heads, q_len=self.seq,
            kv_len=self.seq, head_dim=head_dim, v_head_dim=head_dim, mask=CAUSAL, phase="train",
            device=self.device,
        )  # fmt: skip

    @property
    def slug(self) -> str:
        """``n96 w32 h1 d32 l1``, and the rate of learning."""
        head_dim = self.width // self.heads
        return (
            f"n{self.seq} w{self.width} h{self.heads} d{head_dim} l{self.layers} "
            f"lr{self.rate:g} {self.device}"
        )

    def with_(self, **changes: Any) -> Setting:
        """This one with some values replaced."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "pairs": list(self.pairs)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Setting:
        """Back from :meth:`to_dict`."""
        return cls(**{**values, "pairs": tuple(values["pairs"])})


@dataclass(frozen=True)
class Job:
    """One training."""

    variant: Variant
    setting: Setting
    seed: int
    seconds: float | None = None
    """It goes on until it has its steps and these; None: only its steps count."""
    threads: int = 1

    @property
    def limit_s(self) -> float:
        """What its loop may take at the most."""
        return max(LONGEST_S, SLACK * (self.seconds or 0.0))

    def to_dict(self) -> dict[str, Any]:
        """To send to its process."""
        return {
            "variant": self.variant.to_dict(), "setting": self.setting.to_dict(),
            "seed": self.seed, "seconds": self.seconds, "threads": self.threads,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, sent: Mapping[str, Any]) -> Job:
        """As it was sent."""
        variant, setting = Variant.from_dict(sent["variant"]), Setting.from_dict(sent["setting"])
        return cls(**{**sent, "variant": variant, "setting": setting})
