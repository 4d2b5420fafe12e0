"""The project's own answer, from what is committed: ``python -m proofs.answer [--write]``.

``docs/answer.md`` is made from a run and evidence under ``results/`` and held against what is
committed, byte by byte; ``--write`` puts the new one in its place. The words are written by hand in
``answer.md.jinja``: what they claim is asked of the figures first, and where those don't bear it
out any more nothing is made, but a sentence is named that has to be written anew.

A lead counts where the intervals of both times are apart by more than the run's own margin.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from attnbench.core.evidence import evidence_of, read_evidence
from attnbench.core.record import Record
from attnbench.features.quality import model, real, recall
from attnbench.features.quality.task import MARKS, Judgement, Result
from attnbench.report.scenes import Scene, gather, scenes
from proofs.answer_lm import TOKENS, LanguageModel, two
from proofs.support import renew

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MACHINE = ROOT / "results" / "amd-epyc-2c"
RUN = "20261123-021508"
H200, H200_RUN = ROOT / "results" / "nvidia-h200", "20261126-164647"
H200_COLUMNS = ["forward, 2,048", "forward, 8,192", "forward, 32,768"]
H200_COLUMNS += ["train, 8,192", "decode, 32,768"]
PAGE = ROOT / "docs" / "answer.md"
WINDOW = "window:127,0"
PAIRS = 32
LEVELS = (0.999, 0.99, 0.95, 0.9)
"""Of the median cosine."""
HALF, LITTLE = 0.5, 0.2
"""A cosine, and a share of what softmax does beyond averaging."""
RECALLED = {
    "sdpa": Judgement.KEEPS,
    "linear.elu": Judgement.LACKS,
    "performer?features=64": Judgement.LACKS,
    "dilated?dilation=1&width=32": Judgement.LACKS,
}
"""What other seeds say too, which is why the page says no more."""
Ratio = tuple[float, float, float]
"""A value between a low and a high one."""


class NotSoAnyMore(Exception):
    """A sentence of the page that the figures don't bear out."""


@dataclass(frozen=True)
class Step:
    """A variant at one length: how many times as fast as the fastest that is exact."""

    variant: str
    computes: str
    ratio: Ratio
    ahead: bool
    """Beyond both intervals and the run's margin."""

    def __str__(self) -> str:
        text = with_interval(self.ratio)
        return f"**{text}**" if self.ahead else text


class Speed:
    """One regime of the long run: who is faster than exact softmax, from which length on."""

    def __init__(self, scene: Scene) -> None:
        self.regime, self.margin = scene.regime, scene.run.margin
        self.standings = {s.length: s for s in scene.standings}
        self.lengths = sorted(n for n, s in self.standings.items() if s.answer)
        self.longest = self.lengths[-1]

    def winner(self, length: int) -> str:
        """The fastest exact variant at a length, or those that tie for it."""
        leaders = self._fastest_first(length, self.standings[length].leaders)
        return " or ".join(f"`{r.variant}`" for r in leaders)

    def others(self, length: int) -> list[Step]:
        """What is not exact softmax at a length, the fastest first."""
        answer = self.standings[length].answer
        exact, *_ = self._fastest_first(length, (*answer.leaders, *answer.same))
        steps = []
        for r in self.regime.timed(length).values():
            if r.computes != "softmax":
                ahead = r.time.high_s * (1 + self.margin) < exact.time.low_s
                steps.append(Step(r.variant, r.computes, _ratio(exact, r), ahead))
        return sorted(steps, key=lambda s: -s.ratio[0])

    def ahead(self, length: int) -> list[Step]:
        """Those that are faster beyond doubt."""
        return [step for step in self.others(length) if step.ahead]

    def against(self, variant: str, other: str, length: int) -> Ratio:
        """How many times as fast one is as the other."""
        timed = self.regime.timed(length)
        return _ratio(timed[other], timed[variant])

    def rows(self) -> Iterator[tuple[str, str, list[str], str]]:
        """A variant, what it computes, a cell for each length, and from where it is ahead."""
        steps = {n: {s.variant: s for s in self.others(n)} for n in self.lengths}
        for step in self.others(self.longest):
            own = [steps[n].get(step.variant) for n in self.lengths]
            behind = [n for n, s in zip(self.lengths, own, strict=True) if not (s and s.ahead)]
            later = [n for n in self.lengths if not behind or n > behind[-1]]
            ahead_from = f"{later[0]:,}" if later else "not here"
            yield step.variant, step.computes, [str(s or "–") for s in own], ahead_from

    def skill(self, variant: str) -> float | None:
        """Its skill at the longest length, on the run's own inputs."""
        distance = self.regime.timed(self.longest)[variant].distance
        return distance.skill if distance else None

    def _fastest_first(self, length: int, names: tuple[str, ...]) -> list[Record]:
        timed = self.regime.timed(length)
        return sorted((timed[n] for n in names if timed[n].time), key=lambda r: r.time.median_s)


class Data:
    """The figures of the page, and by which command each was measured."""

    def __init__(self) -> None:
        (self.run,) = gather([MACHINE / RUN])
        self.scenes = scenes([self.run])
        kinds = ("reproduce", "recall", "model", "real", "lm", "caches")
        self.evidence = {k: read_evidence(next(evidence_of(MACHINE, k))) for k in kinds}
        self.lm = LanguageModel(self.evidence["lm"], self.evidence["caches"])
        (gpu_run,) = gather([H200 / H200_RUN])
        self.gpu_command = gpu_run.commands[0].partition(" --out")[0]
        some = (s for s in scenes([gpu_run]) if any(standing.answer for standing in s.standings))
        steps = {
            f"{speed.regime.phase}, {length:,}": speed.others(length)
            for speed in map(Speed, some)
            for length in speed.lengths
        }
        self.gpu = {name: steps[name] for name in H200_COLUMNS}
        *_, group = model.results(self.evidence["model"])
        self.points = {r.variant: r for r in group.judged() if r.step}
        self.floor = next(r.step for r in group.results if r.variant == model.NO_ATTENTION)
        self.levels = {level: group.keepers(level) for level in LEVELS}
        """The fastest first, at the longest text whose step was timed."""
        self.by_steps, self.by_time = recall.results(self.evidence["recall"])
        (self.skills,) = real.results(self.evidence["real"])

    def gpu_rows(self) -> Iterator[tuple[str, str, list[str]]]:
        """A variant on the H200, and its cells."""
        by_name = [{step.variant: step for step in steps} for steps in self.gpu.values()]
        for name in dict.fromkeys(name for steps in by_name for name in steps):
            some = [steps.get(name) for steps in by_name]
            computes = next(step.computes for step in some if step)
            yield name, computes, [str(step or "–") for step in some]

    def speed(self, phase: str, mask: str = "none") -> Speed:
        """A regime of the run."""
        (scene,) = (s for s in self.scenes if (s.regime.phase, s.regime.mask) == (phase, mask))
        return Speed(scene)

    def noisy(self) -> tuple[int, int]:
        """How many times are marked as noisy, and how many there are."""
        times = [record.time for record in self.run.records if record.time]
        return sum(bool(time.flags) for time in times), len(times)

    def command(self, kind: str) -> str:
        """The command of the run, or of some evidence."""
        return str(self.run.commands[0] if kind == "run" else self.evidence[kind].made["command"])

    def claims(self, verdict: str) -> list[str]:
        """The claims with a verdict."""
        return [row["name"] for row in self.evidence["reproduce"].rows if row["verdict"] == verdict]

    def skill(self, variant: str) -> tuple[float, float] | None:
        """The least and the most skill on the layers of the trained model."""
        for result in self.skills.results:
            if result.variant == variant:
                layers = result.scores[self.skills.score]
                return layers.low or 0.0, layers.high or 0.0
        return None

    def model_rows(self) -> Iterator[tuple[str, str, str, str]]:
        """What is not exact in the trained model, the nearest to the original first."""
        for r in self.points.values():
            if r.computes != "softmax" and r.step:
                cosine = "{} [{}, {}]".format(*map(format_cosine, r.scores["cosine"].three))
                yield r.variant, r.computes, cosine, two(r.step)

    def recall_rows(self) -> Iterator[tuple[str, ...]]:
        """What was trained to recall, the best after the same steps first."""
        late = {r.variant: r for r in self.by_time.results}
        for r in self.by_steps.judged():
            state = f"{r.more['state']:,}"
            cells = recall_cell(r), recall_cell(late[r.variant]), two(r.step), state
            yield r.variant, r.computes, *cells


def format_cosine(value: float) -> str:
    """``0.9876``, or ``> 0.9999``"""
    return "> 0.9999" if value >= 0.99995 else f"{value:.4f}"


def recall_cell(result: Result) -> str:
    """``86.5 ± 2.3``, with what is known of it."""
    accuracy = result.scores[f"{PAIRS} pairs"]
    value, low, high = accuracy.three
    mark = MARKS[accuracy.judge(recall.LEVEL)]
    return f"{100 * value:.1f} ± {100 * max(high - value, value - low):.1f}{mark}"


def share(skill: tuple[float, float] | float | None) -> str:
    """``45 to 55 %`` of what softmax does beyond averaging."""
    if skill is None:
        return "–"
    ends = skill if isinstance(skill, tuple) else (skill,)
    if round(100 * max(ends)) <= 0:
        return "nothing"
    return " to ".join(f"{100 * x:.0f}" for x in ends) + " %"


def with_interval(ratio: Ratio, unit: str = "") -> str:
    """``6.7 times [6.1, 7.2]``"""
    value, low, high = (f"{x:.{0 if x >= 10 else 1 if x >= 1 else 2}f}" for x in ratio)
    return f"{value}{unit} [{low}, {high}]"


def _ratio(record: Record, other: Record) -> Ratio:
    one, two = record.time, other.time
    return one.median_s / two.median_s, one.low_s / two.high_s, one.high_s / two.low_s


def claims(data: Data) -> Iterator[tuple[str, bool]]:
    """What the words say that no figure in them shows."""
    yield from data.lm.claims()
    for phase in ("forward", "train"):
        speed, window = data.speed(phase), data.speed(phase, WINDOW)
        most = len(speed.others(speed.longest)) / 2
        many, few = (len(speed.ahead(n)) for n in (speed.longest, speed.lengths[0]))
        yield f"most are faster at the longest length, {phase}", many > most
        yield f"most are not at the shortest, {phase}", few < most
        leads = "window.blocked" in window.standings[window.longest].leaders
        _, least, _ = window.against("window.blocked", "sdpa", window.longest)
        leads = leads and least > 1 + window.margin
        yield f"window.blocked leads with a window and is ahead of sdpa, {phase}", leads
    for name, p in data.points.items():
        if p.computes == "its own operator":
            skill = data.skill(name)
            yield f"{name} in a trained model ends below half", p.scores["cosine"].value < HALF
            yield f"{name} keeps little of softmax", skill is None or skill[1] < LITTLE
    for name in ("bigbird", "longformer"):
        yield f"{name} keeps most of softmax", (data.skill(name) or (0.0, 0.0))[0] > HALF
    gains = any(keep and keep[0].faster for keep in data.levels.values())
    yield "nobody gains at any quality", not gains
    for group in (data.by_steps, data.by_time):
        recalls = {r.variant: r.scores[f"{PAIRS} pairs"] for r in group.results}
        for name, judgement in RECALLED.items():
            holds = recalls[name].judge(recall.LEVEL) is judgement
            yield f"99 % of recall {judgement} {name}, {group.setting}", holds
    for claim in ("reassociated", "sparse-long", "low-rank"):
        yield f"{claim} is reproduced", claim in data.claims("reproduced")
    yield "one claim was not reproduced", data.claims("not reproduced") == ["one-head"]


def new_page() -> str:
    """The page."""
    data = Data()
    if wrong := [sentence for sentence, holds in claims(data) if not holds]:
        raise NotSoAnyMore("the figures don't say any more that " + "; that ".join(wrong))
    words = Environment(
        loader=FileSystemLoader(HERE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    words.filters |= {"share": share, "with_interval": with_interval}
    return words.get_template("answer.md.jinja").render(
        data=data,
        forward=data.speed("forward"),
        train=data.speed("train"),
        window=data.speed("forward", WINDOW),
        window_train=data.speed("train", WINDOW),
        pairs=PAIRS,
        tokens=TOKENS,
        two=two,
    )


if __name__ == "__main__":
    sys.exit(renew(PAGE, new_page(), sys.argv[1:]))
