"""Grids of published models: a kind of attention layer each, read from ``models.toml``."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from attnbench.sweep.presets import Preset
from impls.errors import CantBeDone
from impls.masks import Mask

DATA = Path(__file__).with_name("models.toml")
USUAL = {"forward": ("2048", "8192"), "train": ("4096",), "decode": ("8192", "32768")}
"""Lengths by phase, where a model has none of its own."""
CPU_TOKENS, CPU_HEADS = 1024, 12
"""On a CPU the longest sequence of a forward pass, and the most query heads."""


class LayerKind(msgspec.Struct, frozen=True):
    """A kind of attention layer, and how many of them the model has."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int = 0
    """The same as head_dim, if 0."""
    operator: str = "softmax"
    mask: str = "causal"
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    keys: int = 0
    """The keys and values of cross attention; as many as queries, if 0."""
    decode: dict[str, int] = {}
    """Sizes that differ in decode."""

    def sizes(self, phase: str) -> dict[str, int]:
        """The heads and their widths in a phase."""
        names = ("heads", "kv_heads", "head_dim", "v_head_dim")
        sizes = {name: getattr(self, name) for name in names}
        sizes |= self.decode if phase == "decode" else {}
        return {**sizes, "v_head_dim": sizes["v_head_dim"] or sizes["head_dim"]}

    def parameters(self, phase: str) -> dict[str, tuple[Any, ...]]:
        """The parameters of its operator. The factor of the scores is the same in every phase.

        Where the width of values is another in decode, the cache has them in the keys.
        """
        parameters: dict[str, tuple[Any, ...]] = {"scale": (self.scale or self.head_dim**-0.5,)}
        parameters |= {"softcap": (self.softcap,)} if self.softcap else {}
        parameters |= {"sinks": (True,)} if self.sinks else {}
        latent = phase == "decode" and "v_head_dim" in self.decode
        return parameters | ({"v_in_k": (True,)} if latent else {})


class Model(msgspec.Struct, frozen=True):
    """A published model."""

    name: str
    about: str
    source: str
    config: dict[str, Any]
    """The fields of the source that its kinds were made of."""
    kinds: tuple[LayerKind, ...]
    note: str = ""
    """How what is measured differs from the model."""
    phases: tuple[str, ...] = ("forward", "train", "decode")
    seq: tuple[str, ...] = ()
    """Its own lengths of a forward pass; the shortest is trained."""

    @property
    def layers(self) -> int:
        """All its attention layers."""
        return sum(kind.layers for kind in self.kinds)

    @property
    def share_on_cpu(self) -> float:
        """The length of a sequence on a CPU, as a share of its length."""
        return CPU_TOKENS / max(CPU_TOKENS, *map(int, self.lengths("forward")))

    def lengths(self, phase: str) -> tuple[str, ...]:
        """The lengths that are measured in a phase, if no others are asked for."""
        if self.seq and phase != "decode":
            return self.seq[:1] if phase in ("train", "backward") else self.seq
        return USUAL["train" if phase == "backward" else phase]


@cache
def models() -> Mapping[str, Model]:
    """All models by name."""
    result = {}
    for name, entry in tomllib.loads(DATA.read_text()).items():
        kinds = [_resolved(kind, entry["config"]) for kind in entry["kinds"]]
        result[name] = msgspec.convert({**entry, "name": name, "kinds": kinds}, Model)
    return result


def _resolved(kind: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A kind with the values of the configuration in place of their names."""
    values: dict[str, Any] = {}
    for field, value in kind.items():
        if isinstance(value, dict):
            values[field] = _resolved(value, config)
        elif isinstance(value, str) and field not in ("name", "operator", "mask"):
            values[field] = config[value]
        else:
            values[field] = value
    return values


def find_model(name: str) -> Model:
    """The model of a name; raises CantBeDone with the choices, those that are like it first."""
    known = models()
    if (model := known.get(name.lower())) is not None:
        return model
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    near += [other for other in known if name.lower() in other and other not in near]
    order = [*near, *(other for other in known if other not in near)]
    raise CantBeDone(
        f"there is no model {name!r}; the models are {', '.join(order)} "
        "('attnbench list --models' says where each was read)"
    )


# ---- a model's grid ------------------------------------------------------------------------------


def model_grid(
    model: Model,
    device: str,
    tp: int = 1,
    phases: Sequence[str] | None = None,
    seq: Sequence[str] | None = None,
    dtype: Sequence[str] | None = None,
) -> Preset:
    """The grid of a rank of a model: parts by kind of layer and phase, named after the kind.

    ``phases``, ``seq``, ``dtype``: in place of the model's own. On a CPU the heads, and lengths
    that were not asked for, are scaled; the title says how. Raises CantBeDone for what can't be.
    """
    for phase in phases or ():
        if phase not in (*model.phases, "backward"):
            raise CantBeDone(
                f"{model.name} has no phase {phase!r}; its phases are {', '.join(model.phases)} "
                "and backward"
            )
    cpu = device.startswith("cpu")
    share = 1.0 if seq or not cpu else model.share_on_cpu
    ranks = [_rank(model, kind, tp) for kind in model.kinds]
    kinds = [_scaled(kind, share) if cpu else kind for kind in ranks]
    types = tuple(dtype or [("float32" if cpu else "bfloat16")])
    parts = []
    for kind, phase in product(kinds, phases or model.phases):
        lengths = seq or [str(round(int(n) * share)) for n in model.lengths(phase)]
        parts.append(_part(kind, phase, lengths, types))
    title = f"{model.name}{f', one of {tp} ranks' if tp > 1 else ''}"
    if scaled := [*_changes(ranks, kinds, share)]:
        title += f", scaled to a CPU: {', '.join(scaled)}"
    title += ", in float32" if cpu and not dtype else ""
    title += f"; {model.note}" if model.note else ""
    return Preset(title, budget=0.05, device=device, level=("core",)).of(*parts)


TAKES = ("seq", "batch", "dtype", "phase", "inputs", "device", "budget")
"""The values of a grid that a model leaves open."""


def grid_asked(name: str, tp: int | None, device: str, changes: Mapping[str, Any]) -> Preset:
    """The grid of the model of a name, with values of the command line; raises CantBeDone."""
    if beside := [f"--{each}".replace("_", "-") for each in changes if each not in TAKES]:
        raise CantBeDone(f"--model has its own {', '.join(beside)}: leave {', '.join(beside)} out")
    own = [changes.get(each) for each in ("phase", "seq", "dtype")]
    rest = {each: changes[each] for each in ("batch", "inputs", "budget") if each in changes}
    return model_grid(find_model(name), device, tp or 1, *own).with_(**rest)


def _rank(model: Model, kind: LayerKind, tp: int) -> LayerKind:
    """The share of one of ``tp`` ranks: query heads are dealt out, and so are kv heads until each
    rank has one.
    """
    if tp == 1:
        return kind
    if not _divides(kind, tp):
        most = max(kind.heads for kind in model.kinds)
        choices = [n for n in range(1, most + 1) if all(_divides(k, n) for k in model.kinds)]
        raise CantBeDone(
            f"--tp {tp} doesn't divide the heads of {model.name} ({kind.name}: {kind.heads} heads, "
            f"{kind.kv_heads} kv_heads); it can be {', '.join(map(str, choices))}"
        )
    less = {"heads": kind.heads // tp, "kv_heads": max(1, kind.kv_heads // tp)}
    return msgspec.structs.replace(kind, **less)


def _divides(kind: LayerKind, tp: int) -> bool:
    """True where every rank has as many heads."""
    return kind.heads % tp == 0 and (kind.kv_heads % tp == 0 or tp % kind.kv_heads == 0)


def _scaled(kind: LayerKind, share: float) -> LayerKind:
    """The kind for a CPU: at most :data:`CPU_HEADS` query heads, as many to a kv head as before;
    windows and chunks that would hide nothing in shorter sequences as much shorter.
    """
    group = kind.heads // kind.kv_heads
    kv_heads = min(kind.kv_heads, max(1, CPU_HEADS // group))
    heads = {"heads": group * kv_heads, "kv_heads": kv_heads}
    return msgspec.structs.replace(kind, **heads, mask=_shorter_mask(kind.mask, share))


def _shorter_mask(text: str, share: float) -> str:
    mask = Mask.parse(text)
    parts = []
    for part in mask.parts:
        own = {"window": 1, "chunk": 0}.get(part.kind)  # a window counts its own place besides
        if share < 1 and own is not None and part.numbers[0] + own >= CPU_TOKENS:
            numbers = (round((n + own) * share) - own if n else 0 for n in part.numbers)
            part = replace(part, numbers=tuple(numbers))
        parts.append(part)
    return str(mask.of(parts))


def _changes(
    before: Sequence[LayerKind], after: Sequence[LayerKind], share: float
) -> Iterator[str]:
    """What was scaled, in words; with the kind's name where not all were."""
    words: dict[str, list[str]] = {}
    for was, kind in zip(before, after, strict=True):
        if kind.heads != was.heads:
            words.setdefault(f"{kind.heads} of {was.heads} heads", []).append(kind.name)
        if kind.mask != was.mask:
            words.setdefault(f"{kind.mask} in place of {was.mask}", []).append(kind.name)
    for text, names in words.items():
        yield text + (f" ({', '.join(names)})" if len(names) < len(after) else "")
    if share < 1:
        yield f"sequences {1 / share:.3g} times shorter"


def _part(kind: LayerKind, phase: str, lengths: Sequence[str], dtype: tuple[str, ...]) -> Preset:
    """A kind of layer in a phase."""
    if kind.keys:
        lengths = [n if "x" in n else f"{n}x{kind.keys}" for n in lengths]
    sizes: dict[str, Any] = {name: (size,) for name, size in kind.sizes(phase).items()}
    return Preset(
        kind.name,
        operator=kind.operator,
        layers=kind.layers,
        seq=tuple(lengths),
        dtype=dtype,
        mask=(kind.mask,),
        phase=(phase,),
        parameters=kind.parameters(phase),
        **sizes,
    )
