"""A problem: one attention call to be computed, with nothing left to guess."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field, structs

from impls.errors import CantBeDone
from impls.masks import Mask, Shape
from impls.operators import PARAMETERS
from impls.spec import DEVICES, DTYPES, PHASES

INPUTS = ("normal", "peaky", "outliers", "equal_keys", "sunk")
"""The kinds of inputs made from a seed; ``captured:FILE.npz`` takes them from a file."""

SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}
MOST = 1 << 20
"""Batch elements, heads, channels of a head: a file may say anything."""
LONGEST = 1 << 25
"""Queries or keys: a hundred times what anybody attends to; masks are counted row by row."""
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}


class InvalidProblem(CantBeDone, ValueError):
    """A problem that can't exist. The message is a sentence with the valid choices."""


Value = TypeVar("Value")


def stated(value: Value) -> Value:
    """A default that is written all the same, where other fields at their default are left out."""
    default: Value = field(default_factory=lambda: value)
    return default


class Fields(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A problem as it is written."""

    batch: int = stated(1)
    heads: int = stated(8)
    kv_heads: int = stated(8)
    q_len: int = stated(256)
    kv_len: int = stated(256)
    head_dim: int = stated(64)
    v_head_dim: int = stated(64)
    dtype: str = stated("float32")
    mask: Mask = stated(Mask())
    phase: str = stated("forward")
    inputs: str = stated("normal")
    level: str = stated("core")
    device: str = stated("cpu")
    scale: float = None  # type: ignore[assignment]
    """The factor of the scores, where that is not head_dim**-0.5."""
    softcap: float | None = None
    """Scaled scores s become softcap * tanh(s / softcap), before the mask."""
    sinks: bool | None = None
    """True where each head has a learned logit beside its scores, that no value follows."""
    state: bool | None = None
    """True where a recurrence begins with a state that is an input."""
    lse: bool | None = None
    """True where the log-sum-exp of each row's scores is a second output."""
    v_in_k: bool | None = None
    """True where the values are the first v_head_dim channels of the keys, and no input."""
    kv_dtype: str | None = None
    """What the cache of a decoder is kept in, where that is codes in few bits."""
    kv_scale: str | None = None
    """What one scale of such a cache is of, where that is no token."""


class Problem(Fields, frozen=True):
    """One attention call; raises :class:`InvalidProblem` for what can't be one. Hashable."""

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidProblem(f"{name} is {value!r}; it must be a whole number, 1 or more")
            if value > MOST and not name.endswith("_len"):
                raise InvalidProblem(f"{name} is {value:,}; {MOST:,} is the most")
        if max(self.q_len, self.kv_len) > LONGEST:
            raise InvalidProblem(
                f"q_len={self.q_len:,} and kv_len={self.kv_len:,}: {LONGEST:,} is the most"
            )
        if self.heads % self.kv_heads:
            divisors = [str(n) for n in range(1, self.heads + 1) if self.heads % n == 0]
            raise InvalidProblem(
                f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}; "
                f"each key/value head is shared by the same number of query heads, so kv_heads "
                f"must be one of {', '.join(divisors)}"
            )
        self._check_words()
        self._check_parameters()
        if self.level != "core" and self.v_head_dim != self.head_dim:
            raise InvalidProblem(
                f"level {self.level} with v_head_dim={self.v_head_dim} and head_dim="
                f"{self.head_dim}: a layer's tokens are as wide as its heads, so they must be equal"
            )
        if self.level != "core" and self.inputs.startswith("captured:"):
            raise InvalidProblem(
                f"inputs={self.inputs!r} are q, k and v; level {self.level} takes tokens"
            )
        if (wrong := self.mask.wrong_for(self.shape)) is not None:
            raise InvalidProblem(wrong)

    def _check_parameters(self) -> None:
        for name, value in self.parameters.items():
            if (need := PARAMETERS[name].fault(value)) is not None:
                raise InvalidProblem(f"{name} is {value!r}; it must be {need}")
        if self.state and self.phase == "decode":
            raise InvalidProblem(
                "state with phase=decode: a step begins with the state of the tokens before it"
            )
        if self.kv_dtype and self.phase != "decode":
            raise InvalidProblem(
                f"kv_dtype={self.kv_dtype} with phase={self.phase}: a cache is what decode reads; "
                "use --phase decode"
            )
        if self.kv_scale and not self.kv_dtype:
            raise InvalidProblem(
                f"kv_scale={self.kv_scale} is of a cache in few bits: set --kv-dtype too"
            )
        if self.kv_scale == "token":
            structs.force_setattr(self, "kv_scale", None)
        if self.v_in_k and self.v_head_dim > self.head_dim:
            raise InvalidProblem(
                f"v_in_k with v_head_dim={self.v_head_dim}: the keys have head_dim="
                f"{self.head_dim} channels, so it must be {self.head_dim} or less"
            )
        if "scale" in self.parameters and is_usual(self.scale, self.head_dim):
            Fields.scale.__set__(self, None)  # type: ignore[attr-defined]

    def _check_words(self) -> None:
        choices = (("dtype", DTYPES), ("phase", PHASES), ("level", ("core", "layer", "block")))
        for name, valid in choices:
            if getattr(self, name) not in valid:
                raise InvalidProblem(
                    f"{name}={getattr(self, name)!r} is not one of {', '.join(valid)}"
                )
        kind, colon, number = self.device.partition(":")
        if kind not in DEVICES or (colon and not (kind == "cuda" and number.isdigit())):
            raise InvalidProblem(f"device={self.device!r} is not cpu, cuda or cuda:NUMBER")
        kind, _, file = self.inputs.partition(":")
        if self.inputs not in INPUTS and not (kind == "captured" and file):
            raise InvalidProblem(
                f"inputs={self.inputs!r} is not one of {', '.join(INPUTS)} or captured:FILE.npz"
            )

    if not TYPE_CHECKING:  # which knows the field, and no property in its place

        @property
        def scale(self) -> float:
            """The factor of the scores."""
            own = Fields.scale.__get__(self)
            return self.head_dim**-0.5 if own is None else own

    @property
    def shape(self) -> Shape:
        """The shape that a mask needs."""
        return Shape(self.batch, self.heads, self.q_len, self.kv_len)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of its operator that it sets, by name."""
        values = structs.asdict(self)
        return {name: values[name] for name in PARAMETERS if values[name] is not None}

    @property
    def settings(self) -> dict[str, Any]:
        """The numbers and words among its parameters, as keywords of a call."""
        return {n: x for n, x in self.parameters.items() if not PARAMETERS[n].is_flag}

    @property
    def group(self) -> int:
        """Query heads to one key/value head."""
        return self.heads // self.kv_heads

    @property
    def index_heads(self) -> int:
        """Heads of an indexer that selects keys: half as many as query heads, at least one."""
        return max(1, self.heads // 2)

    @property
    def index_dim(self) -> int:
        """Channels of each of them."""
        return self.head_dim

    @property
    def item_bytes(self) -> int:
        """Bytes of one number."""
        return ITEM_BYTES[self.dtype]

    @property
    def width(self) -> int:
        """Numbers to a token, where a layer or a block takes tokens: all heads side by side."""
        return self.heads * self.head_dim

    @property
    def crosses(self) -> bool:
        """True for a layer whose keys and values come from other tokens than its queries."""
        return self.level != "core" and self.phase != "decode" and self.q_len != self.kv_len

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """The shape of a core's output by heads; a layer's is one head as wide as the model."""
        if self.level == "core":
            return (self.batch, self.heads, self.q_len, self.v_head_dim)
        return (self.batch, 1, self.q_len, self.width)

    @property
    def gradients(self) -> bool:
        """True where the phase runs backward."""
        return self.phase in ("train", "backward")

    def __str__(self) -> str:
        """``b2 h16/16 n4096 d128 bf16 causal train``; what is ordinary is left out."""
        length = f"n{self.q_len}" if self.q_len == self.kv_len else f"n{self.q_len}x{self.kv_len}"
        width = f"d{self.head_dim}"
        if self.v_head_dim != self.head_dim:
            width += f"/{self.v_head_dim}"
        words = [f"b{self.batch}", f"h{self.heads}/{self.kv_heads}", length, width]
        words += [SHORT[self.dtype], str(self.mask), self.phase]
        words += [self.inputs] * (self.inputs != "normal")
        words += [self.level] * (self.level != "core")
        words += setting_words(self.parameters)
        words += [self.device] * (self.device != "cpu")
        return " ".join(words)

    def with_(self, **changes: Any) -> Problem:
        """This problem with some fields changed."""
        return structs.replace(self, **changes)


def setting_words(parameters: Mapping[str, Any]) -> list[str]:
    """``softcap 50``, ``sinks``: parameters in words."""
    named = {name.replace("_", "-"): value for name, value in parameters.items()}
    texts = {n: x if isinstance(x, str) else f"{x:g}" for n, x in named.items()}
    return [name if value is True else f"{name} {texts[name]}" for name, value in named.items()]


def is_usual(scale: float, head_dim: int) -> bool:
    """True if scores are scaled as a problem's are; ``1 / math.sqrt(d)`` is ``d**-0.5`` too."""
    return isclose(scale, head_dim**-0.5, rel_tol=1e-6)
