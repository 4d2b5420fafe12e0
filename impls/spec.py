"""A row of the table: one way to compute attention, as data.

A row names its code by dotted path, so that reading the table imports no kernel. The code behind
it is two functions deep: ``build(problem, **options) -> attend`` does once what is done once, and
``attend(q, k, v) -> out`` does what is done at every call. Layouts are

    q [batch, heads, q_len, head_dim]      k [batch, kv_heads, kv_len, head_dim]
    out [batch, heads, q_len, v_head_dim]  v [batch, kv_heads, kv_len, v_head_dim]

A problem with ``lse`` wants (out, lse), as :data:`impls.operators.OUTPUTS` describes it.

In phase ``decode`` k and v are the whole cache, the new tokens last. A variant that keeps something
else of the tokens before (a recurrent state) gives its ``attend`` two methods: ``remember(k, v) ->
memory``, called once for all tokens but the new ones, outside the clock, and ``step(q, k, v,
memory) -> (out, memory)`` of the new tokens alone, which is what is timed. ``step`` leaves the
memory it was given as it is. Two steps are as one, unless ``attend.forgets``: then what it holds
may depend on where the tokens before ended.

A row of level ``layer`` or ``block`` takes tokens: ``attend(x)``, x [batch, q_len, width], or
``attend(x, context)`` where kv_len is another than q_len, and gives [batch, q_len, width]; width is
heads x head_dim. What it trains it names: ``attend.weights``, leaf tensors by name, whose gradients
are asked for with those of x. Its definition has the same ``weights``, by name, form and value, and
is ``define(x, rows, weights)``, with a context after x. It decodes with ``remember(x)`` and
``step(x, memory)``.

A row of ``ranks`` runs over as many processes as its option ``world`` says: ``build(problem, ranks,
**options) -> attend`` of one rank's share, the options without ``world``; ``ranks`` are the others
(:mod:`impls.parallel.ranks`). Its ``shares`` say which tokens each rank holds.

An ``attend`` that selects keys by what they hold says which, with ``select(q, k) -> picks``
[batch, heads that select, q_len, t]: numbers of keys, or of blocks of keys, and -1 for none. Its
definition then takes ``picks`` by name, and says by which scores they are judged
(:mod:`attnbench.gate.selection`). Where the row names ``parts``, ``parts(q, k, v)`` gives a
function of the same inputs for each; the last gives what ``attend`` does.

An ``attend`` may say what ran, with ``note() -> str``. One that compiles may have
``alike(problem) -> attend``, for a problem that differs in batch, lengths and the numbers of its
mask alone: all of those share what is compiled, where ``build`` compiles for its problem alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import Struct, structs

from impls.errors import CantBeDone
from impls.loading import load_function
from impls.masks import MASK_KINDS as MASK_KINDS
from impls.operators import OPERATORS, PARAMETERS, further
from impls.operators import Computes as Computes

if TYPE_CHECKING:
    from impls.problem import Problem

INTERFACE = 4
"""Version of the contract between the table and the ruler."""

Level = Literal["core", "layer", "block"]

DTYPES = ("float32", "bfloat16", "float16", "float64")
PHASES = ("forward", "train", "backward", "decode")
DEVICES = ("cpu", "cuda")
NO_GRADIENT = ("forward", "decode")
"""The phases of a variant that has no backward."""
CROSSES = (False, "decode", True)
"""Values of ``cross``, for unequal lengths, the least first."""
COMPILED = "Torch-Compiled Region"
"""torch's profiler's name for code that its compiler made, with numbers after a colon."""

MOST = 2.0**63
"""Numbers beyond this are no option's."""
SWAPPABLE = re.compile(r"aten::_(scaled_dot_product|flash|efficient|cudnn)_\w+")
_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")

PerDevice = Mapping[str, tuple[str, ...]]


class InvalidRow(CantBeDone, ValueError):
    """A row that says something no row may say. The message is a sentence."""


class Unsupported(Exception):
    """Raised by ``build``: this variant can't serve this problem. The message is a sentence."""


def at_least(name: str, value: float, least: float, aside: str = "") -> None:
    """Raise Unsupported for an option below its range; ``aside``: what that means."""
    if not value >= least:
        raise Unsupported(f"{name}={value} must be {least}{aside and f' {aside}'} or more")


class Unavailable(Exception):
    """This variant can't run on this machine: why, and what would change that."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


class Variant(Struct, frozen=True, forbid_unknown_fields=True):
    """One row: what it computes, where its code is, what it takes and what it costs.

    ``masks``, ``dtypes`` and ``phases`` may be given once for all devices, or as
    ``{"cpu": …, "cuda": …}``. Raises :class:`InvalidRow` for what no row may say.
    """

    name: str
    title: str
    family: str
    operator: str
    """One of :data:`impls.operators.OPERATORS`; ``operators`` may name another for an option."""
    build: str
    """Dotted path of ``build(problem, **options) -> attend``: ``package.module:function``."""
    level: Level = "core"
    definition: str | None = None
    """``definition(problem, **options) -> define(q, k, v, rows)``: the plain form, any dtype."""
    cost: str | None = None
    """``cost(problem, **options) -> impls.cost.Cost``, in a module without torch."""
    devices: tuple[str, ...] = DEVICES
    dtypes: PerDevice | Sequence[str] = DTYPES
    masks: PerDevice | Sequence[str] = MASK_KINDS
    phases: PerDevice | Sequence[str] = PHASES
    gqa: bool = True
    cross: bool | str = True
    """Takes q_len different from kv_len; ``"decode"``: in that phase alone."""
    value_dim: bool = True
    """Takes v_head_dim different from head_dim."""
    parameters: tuple[str, ...] = ("scale",)
    """The parameters of its operator that it takes, of :data:`impls.operators.PARAMETERS`."""
    dropout: bool = False
    """``build`` takes ``dropout``, the probability with which a weight is dropped in training."""
    head_dims: tuple[int, int] | None = None
    """Smallest and largest head_dim."""
    requires: tuple[str, ...] = ()
    """Distributions (``flash-attn>=2.6``), ``sm>=80`` or ``sm=90`` (capability),
    ``c++``, ``cc`` (compilers)."""
    install: str = ""
    """The command that installs its requirements, where that is not ``pip install`` of them."""
    options: Mapping[str, bool | int | float | str] = {}
    """Options of ``build``, with the defaults."""
    operators: Mapping[str, str] = {}
    """By ``option=value``: what the row computes under that option."""
    tunes: Mapping[str, Sequence[Any] | str] = {}
    """By option, the values that ``attnbench tune`` tries; of options that are set together, with
    all their names, ``"q_block k_block"``, tuples of values. In place of values the dotted path of
    ``values(problem)``, in a module without torch. Only options that never change the result."""
    ranks: bool = False
    """Runs over several processes, as many as its option ``world`` says."""
    shares: str | None = None
    """For a row of ranks, ``shares(problem, world) -> places of each rank's tokens``, in a module
    without torch; raises :class:`Unsupported` for what can't be split."""
    paper: str = ""
    origin: str = "attnbench"
    """Whose function does the work, or the distribution or file that the row comes from."""
    untried: bool = False
    """Written against what is documented; no run has attested it yet."""
    runs: Mapping[str, str] = {}
    """By device, or ``device?option=value``: the operator that must be among those that ran, where
    the row forces a backend."""
    swaps: tuple[str, ...] = ()
    """The attention operators of torch's in whose place ``build`` puts other kernels, for the whole
    process, until ``attend`` is dropped."""
    parts: tuple[str, ...] = ()
    """What a call is made of, in order, where each part can be timed apart: ``attend.parts`` gives
    a function for each."""
    reuses_output: bool = False
    """A call may return the memory that an earlier call returned. In a model the output is copied,
    which its time does not count."""
    given: Mapping[str, bool | int | float | str] = {}
    """The options that were asked for, where they differ from the defaults or could be tuned."""
    tuned: Mapping[str, bool | int | float | str] = {}
    """Options that ``attnbench tune`` put in place of defaults on this device."""
    core: Variant | None = None
    """The variant inside a layer, as the option ``core`` names it."""

    def __post_init__(self) -> None:
        for name in ("dtypes", "masks", "phases"):
            names = getattr(self, name)
            if not isinstance(names, Mapping):
                names = dict.fromkeys(self.devices, tuple(names))
            structs.force_setattr(self, name, {d: tuple(v) for d, v in names.items()})
        if self.level != "core":
            structs.force_setattr(self, "parameters", ())
        for name in ("devices", "requires", "swaps", "parameters", "parts"):
            structs.force_setattr(self, name, tuple(getattr(self, name)))
        self._check()
        structs.force_setattr(self, "tunes", {n: _values(v) for n, v in self.tunes.items()})

    def _check(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InvalidRow(
                f"the name {self.name!r} is not lower-case words, digits and _ joined by dots"
            )
        operators = [self.operator, *self.operators.values()]
        one_of(self.name, "operator", operators, list(OPERATORS))
        one_of(self.name, "level", [self.level], get_args(Level))
        one_of(self.name, "parameters", self.parameters, list(PARAMETERS))
        one_of(self.name, "devices", self.devices, DEVICES)
        for what in ("dtypes", "masks", "phases"):
            one_of(self.name, f"device of {what}", tuple(getattr(self, what)), DEVICES)
        for device in self.devices:
            one_of(self.name, "dtypes", self.on(device, "dtypes"), DTYPES)
            one_of(self.name, "masks", self.on(device, "masks"), MASK_KINDS)
            one_of(self.name, "phases", self.on(device, "phases"), PHASES)
        if not isinstance(self.options, Mapping):
            raise InvalidRow(f"{self.name}: options is {self.options!r}, not names with defaults")
        for key, default in self.options.items():
            if not isinstance(default, bool | int | float | str):
                raise InvalidRow(
                    f"{self.name}: option {key}={default!r} is no number, text or yes-or-no"
                )
        options = [choice.partition("=")[0] for choice in self.operators]
        one_of(self.name, "option of operators", options, list(self.options))
        check_tunes(self.name, self.tunes, self.options)
        if self.cross not in CROSSES:
            raise InvalidRow(f"{self.name}: cross={self.cross!r} is not true, false or 'decode'")
        for name in ("build", "definition", "cost", "shares"):
            path = getattr(self, name)
            if path is not None and (not isinstance(path, str) or ":" not in path):
                raise InvalidRow(
                    f"{self.name}: {name}={path!r} is not a dotted path 'package.module:function'"
                )
        check_runs(self.name, self.runs, DEVICES, self.options)
        check_swaps(self.name, self.swaps)
        self._check_definition()
        check_ranks(self.name, self.level, self.ranks, self.shares, self.options)

    def _check_definition(self) -> None:
        if self.level == "core" and self.exact and self.definition is not None:
            raise InvalidRow(
                f"{self.name} computes softmax, so the oracle is its definition: it has no other"
            )
        if self.level != "core" and self.definition is None:
            raise InvalidRow(
                f"{self.name} is at level {self.level}, so it needs a definition: "
                "no oracle knows its weights"
            )
        if not self.exact and self.definition is None:
            raise InvalidRow(
                f"{self.name} computes {self.computes!r}, so it needs a definition: "
                "the plain form that its implementation error is measured against"
            )

    @property
    def takes(self) -> list[str]:
        """The parameters that it takes: its own, and views, which a core sees as any tensor."""
        operator = OPERATORS[self.operator]
        free = operator.views if self.level == "core" and not self.ranks else ()
        return [name for name in operator.parameters if name in self.parameters or name in free]

    def on(self, device: str, what: Literal["dtypes", "masks", "phases"]) -> tuple[str, ...]:
        """The field's value on a device (``cuda:1`` counts as ``cuda``)."""
        table: Mapping[str, tuple[str, ...]] = getattr(self, what)
        return tuple(table.get(device.split(":")[0], ()))

    def attested_by(self, device: str) -> str | None:
        """The operator that must run on a device under the options given; None where none must."""
        if self.core is not None:
            return self.core.attested_by(device)
        return operator_on(device.split(":")[0], self.runs, self.chosen)

    @property
    def chosen(self) -> dict[str, Any]:
        """Every option as ``build`` will be told it; a core as its row."""
        core = {"core": self.core} if self.core else {}
        return {**self.options, **self.tuned, **self.given, **core}

    @property
    def tunable(self) -> frozenset[str]:
        """The options that tuning may set."""
        return frozenset(name for names in self.tunes for name in names.split())

    @property
    def world(self) -> int:
        """Over how many processes it runs; 1 where it runs in one, as most do."""
        return int(self.chosen["world"]) if self.ranks else 1

    @property
    def label(self) -> str:
        """The name with the options that were asked for: ``chunked?block=64``."""
        if not self.given:
            return self.name
        return self.name + "?" + "&".join(f"{k}={v}" for k, v in sorted(self.given.items()))

    @property
    def computes(self) -> Computes:
        """Its operator, seen from softmax."""
        return OPERATORS[self.operator].computes

    @property
    def exact(self) -> bool:
        """True where it computes softmax attention under the problem's mask and nothing else."""
        return self.computes == "softmax"

    def over(self, core: Variant) -> Variant:
        """This layer around a core: it computes what the core does, and takes what both take.

        Raises :class:`InvalidRow` for what is no core, or runs over several processes.
        """
        if core.level != "core":
            raise InvalidRow(f"{self.name} goes around a core, and {core.name} is a {core.level}")
        if names := further(core.operator):
            raise InvalidRow(
                f"{self.name} goes around a core that takes q, k and v alone, and {core.label} "
                f"takes {listed(names)} too"
            )
        if core.ranks:
            raise InvalidRow(
                f"{self.name} goes around a core in its own process, and {core.name} runs over "
                "several"
            )

        def both(what: Literal["dtypes", "masks", "phases"]) -> dict[str, tuple[str, ...]]:
            return {d: _common(self.on(d, what), core.on(d, what)) for d in devices}

        devices = _common(self.devices, core.devices)
        return self.with_(
            core=core, operator=core.operator, devices=devices, dtypes=both("dtypes"),
            masks=both("masks"), phases=both("phases"), gqa=self.gqa and core.gqa,
            cross=min(self.cross, core.cross, key=CROSSES.index), head_dims=core.head_dims,
            requires=tuple(dict.fromkeys((*self.requires, *core.requires))),
            untried=self.untried or core.untried, swaps=core.swaps,
        )  # fmt: skip

    def with_options(self, texts: Mapping[str, str]) -> Variant:
        """This row with some options set from text; raises InvalidRow for what it doesn't take.

        A default that is asked for counts as asked for only where tuning could change it.
        """
        values = dict(self.given)
        for key, text in texts.items():
            if key not in self.options:
                valid = ", ".join(sorted(self.options)) or "none"
                raise InvalidRow(f"{self.name} has no option {key!r} (its options: {valid})")
            values[key] = typed(self.name, key, text, self.options[key])
        tunable = self.tunable
        changed = {k: v for k, v in values.items() if v != self.options[k] or k in tunable}
        operators = (self.operators.get(f"{key}={value}") for key, value in changed.items())
        return self.with_(given=changed, operator=next(filter(None, operators), self.operator))

    def supports(self, problem: Problem) -> str | None:
        """None where this variant takes the problem, else a sentence that says why not."""
        return refusal(self, problem)

    def with_(self, **changes: Any) -> Variant:
        """This row with some fields changed."""
        return structs.replace(self, **changes)


def _common(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in one if word in other)


def _values(values: Sequence[Any] | str) -> tuple[Any, ...] | str:
    """The values to try as tuples all through, which lists become that were sent as JSON."""
    if isinstance(values, str):
        return values
    return tuple(tuple(v) if isinstance(v, list) else v for v in values)


# ---- options, and the words of a row -------------------------------------------------------------


def typed(row: str, key: str, text: str, default: Any) -> Any:
    """An option's text as the type of its default; raises :class:`InvalidRow` where it is none."""
    if isinstance(default, bool):
        if text.lower() in ("true", "1", "yes", "false", "0", "no"):
            return text.lower() in ("true", "1", "yes")
        raise InvalidRow(f"{row}: option {key}={text!r} is neither true nor false")
    try:
        value = type(default)(text)
    except ValueError:
        kind = type(default).__name__
        raise InvalidRow(f"{row}: option {key}={text!r} is not {kind}, like {default!r}") from None
    if isinstance(value, int | float) and not abs(value) < MOST:
        raise InvalidRow(f"{row}: option {key}={text} is not a number below 2^63")
    return value


def listed(words: Iterable[str]) -> str:
    """``a, b, c``, or ``nothing``."""
    return ", ".join(words) or "nothing"


def one_of(row: str, what: str, names: Sequence[str], valid: Sequence[str]) -> None:
    """Raise :class:`InvalidRow` for what is not among the valid words."""
    wrong = [g for g in names if g not in valid]
    if wrong:
        raise InvalidRow(f"{row}: {what} {wrong[0]!r} is not one of {listed(valid)}")


def check_runs(row: str, runs: Any, devices: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise InvalidRow for what names no operator by ``device`` or ``device?option=value``."""
    if not isinstance(runs, Mapping):
        raise InvalidRow(f"{row}: runs is {runs!r}, not operators by device")
    for where, operator in runs.items():
        device, _, choice = where.partition("?")
        one_of(row, "device of runs", [device], devices)
        key, _, text = choice.partition("=")
        if choice and key not in options:
            raise InvalidRow(f"{row}: runs names an option {key!r}, which it has not")
        if choice:
            typed(row, key, text, options[key])
        if not isinstance(operator, str) or not operator:
            raise InvalidRow(f"{row}: runs on {where} is {operator!r}, not an operator's name")


def check_swaps(row: str, swaps: Sequence[str]) -> None:
    """Raise InvalidRow for what is no fused attention of torch's: the ruler uses the others."""
    for operator in swaps:
        if not isinstance(operator, str) or not SWAPPABLE.fullmatch(operator):
            raise InvalidRow(
                f"{row}: swaps names {operator!r}; a row may replace only torch's fused attention, "
                "such as aten::_scaled_dot_product_flash_attention"
            )


def check_ranks(row: str, level: str, ranks: Any, shares: str | None,
                options: Mapping[str, Any]) -> None:  # fmt: skip
    """Raise InvalidRow for a row of ranks that does not say over how many, or who holds what; and
    for shares of a row that runs in one process.
    """
    if not isinstance(ranks, bool):
        raise InvalidRow(f"{row}: ranks={ranks!r} is neither true nor false")
    if not ranks and shares is not None:
        raise InvalidRow(f"{row}: shares are of a row that runs over several processes: ranks=True")
    if ranks and level != "core":
        raise InvalidRow(f"{row} runs over several processes and is a {level}: only a core can")
    if ranks and (shares is None or type(options.get("world")) is not int):
        raise InvalidRow(
            f"{row} runs over several processes, so it needs an option world, a whole number, and "
            "shares: who holds which tokens"
        )


def check_tunes(row: str, tunes: Any, options: Mapping[str, Any]) -> None:
    """Raise InvalidRow for values to try of what is no option, or not like its default."""
    if not isinstance(tunes, Mapping):
        raise InvalidRow(f"{row}: tunes is {tunes!r}, not values by option")
    for names, values in tunes.items():
        several = str(names).split()
        if not several or any(name not in options for name in several):
            raise InvalidRow(f"{row}: tunes names {names!r}, and its options are {listed(options)}")
        if isinstance(values, str):
            if ":" not in values:
                raise InvalidRow(
                    f"{row}: tunes {names}={values!r} is neither values nor a dotted path "
                    "'package.module:function'"
                )
            continue
        kinds = [type(options[name]) for name in several]
        for value in values:
            one = value if isinstance(value, list | tuple) else [value]
            if [*map(type, one)] != kinds:
                raise InvalidRow(
                    f"{row}: tunes {names} to {value!r}, which is not like the default"
                )


def operator_on(device: str, runs: Mapping[str, str], options: Mapping[str, Any]) -> str | None:
    """The operator that a row's ``runs`` names for a device under the options chosen."""
    for where, operator in runs.items():
        on, _, choice = where.partition("?")
        key, _, text = choice.partition("=")
        if on == device and (not choice or options[key] == typed("", key, text, options[key])):
            return operator
    return None


# ---- whether a row takes a problem ---------------------------------------------------------------


def refusal(row: Variant, problem: Problem) -> str | None:
    """None where the row takes the problem, else a sentence that says why not."""
    device = problem.device.split(":")[0]
    if problem.level != row.level:
        return f"{row.label} works at level {row.level}, not {problem.level}"
    if row.ranks and row.world < 2:
        return f"{row.label} runs over several processes: ask for --world 2"
    if device not in row.devices:
        return f"{row.label} runs on {listed(row.devices)}, not on {device}"
    if problem.dtype not in row.on(device, "dtypes"):
        accepted = listed(row.on(device, "dtypes"))
        return f"{row.label} takes {accepted} on {device}, not {problem.dtype}"
    if problem.phase not in row.on(device, "phases"):
        return _no_such_phase(row, device, problem.phase)
    refused = [kind for kind in problem.mask.kinds if kind not in row.on(device, "masks")]
    if refused:
        accepted = listed(row.on(device, "masks"))
        return f"{row.label} takes the masks {accepted} on {device}, not {listed(refused)}"
    if refused := [name for name in problem.parameters if name not in row.takes]:
        return f"{row.label} takes no {listed(refused)}"
    if problem.kv_dtype is None and "kv_dtype" in row.takes:
        return f"{row.label} decodes from a cache in few bits: choose its dtype by --kv-dtype"
    return _refused_shape(row, problem)


def _no_such_phase(row: Variant, device: str, phase: str) -> str:
    phases = row.on(device, "phases")
    why = "it has no backward" if set(phases) <= set(NO_GRADIENT) else "see its row"
    differs = len({row.on(each, "phases") for each in row.devices}) > 1
    here = f" on {device}" if differs else ""
    return f"{row.label}{here} is for {listed(phases)} only: {why}"


def _refused_shape(row: Variant, problem: Problem) -> str | None:
    if problem.heads != problem.kv_heads and not row.gqa:
        return f"{row.label} has no grouped-query form: it needs as many kv_heads as heads"
    crosses = problem.phase == "decode" if row.cross == "decode" else row.cross
    if problem.q_len != problem.kv_len and not crosses:
        but = ", but in decode" if row.cross == "decode" else ""
        return f"{row.label} needs q_len equal to kv_len{but}"
    if problem.v_head_dim != problem.head_dim and not row.value_dim:
        return f"{row.label} needs v_head_dim equal to head_dim"
    if row.head_dims and not row.head_dims[0] <= problem.head_dim <= row.head_dims[1]:
        return f"{row.label} takes head_dim {row.head_dims[0]} to {row.head_dims[1]}"
    return _refused_split(row, problem) if row.ranks else None


def _refused_split(row: Variant, problem: Problem) -> str | None:
    """The message about a problem that can't be split, from the process that deals out shares."""
    assert row.shares is not None
    try:
        load_function(row.shares)(problem, row.world)
    except Unsupported as why:
        return str(why)
    return None
