"""The answers for a captured program on the terminal."""

from attnbench.answer.choose import Choice, Wants
from attnbench.answer.choose_calls import SiteGain, gain
from attnbench.answer.ranking import Candidate, Ranking
from attnbench.core.stats import Interval
from attnbench.features.choose import view
from attnbench.features.choose.calls import ProgramAnswer
from attnbench.models.capture.calls import SeenCalls
from impls.masks import Mask
from impls.problem import Problem

EXACTLY = Interval.exactly


BEST = Candidate("chunked", "softmax", 1e-3, 0.9e-3, 1.1e-3, measured=True)
FASTER = SiteGain(
    *("a.py:1 · short", EXACTLY(0.4), "matmul", 2e-3, 2e-3, "sdpa", 1e-3, EXACTLY(0.5)),
    mend=("take sdpa",),
)
LONGER = SiteGain(
    *("b.py:2 · [long]", EXACTLY(0.2), "matmul", 8e-3, None),
    *("chunked", 2e-3, Interval(0.25, 0.12, 0.5)),
    mend=("take chunked",),
)
UNKNOWN = SiteGain("d.py:4", None, "flex", why="how long is not [known]")
SILENT = SiteGain("e.py:5", EXACTLY(0.05), "mha", why="nobody serves it")


def test_a_program_has_its_answers_its_sites_and_its_gain(shown):
    sites = (FASTER, LONGER, UNKNOWN, SILENT)
    short, long = (Problem(q_len=n, kv_len=n, mask=Mask.parse("causal")) for n in (256, 1024))
    none = Choice(long, Wants(), why_not="nothing was measured of it")
    chunked, found = Choice(long, Wants(), Ranking(BEST, (), (), None, None)), gain(sites, "a step")
    said = shown(
        view.show_calls, ProgramAnswer(SeenCalls(), {short: none, long: chunked}, found)
    ).splitlines()
    assert said[0] == found.sentence() and said[0].endswith("2 of 4 sites stay as they are")
    blocks = {line[:6]: said[at : at + 3] for at, line in enumerate(said) if ".py:" in line}
    assert blocks == {
        "a.py:1": [
            "a.py:1 · short, 40\u00a0% of a step",
            "  now   2 ms a call; 2 ms in the program: matmul",
            "  then  1 ms, 0.50× [0.50, 0.50] of it: take sdpa",
        ],
        "b.py:2": [
            "b.py:2 · [long], 20\u00a0% of a step",
            "  now   8 ms a call: matmul",
            "  then  2 ms, 0.25× [0.12, 0.50] of it: take chunked",
        ],
        "d.py:4": ["d.py:4", "  now   flex", "  how long is not [known]"],
        "e.py:5": ["e.py:5, 5\u00a0% of a step", "  now   mha", "  nobody serves it"],
    }
    assert said[-2:] == [none.sentence(), chunked.sentence()]
