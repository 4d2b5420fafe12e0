"""The answers for a captured program on the terminal."""

from attnbench.answer.choose import Choice, Wants
from attnbench.answer.choose_calls import SiteTimes, gain
from attnbench.answer.ranking import Candidate, Ranking
from attnbench.core.stats import Interval
from attnbench.features.choose import view
from attnbench.features.choose.calls import ProgramAnswer
from attnbench.models.capture.calls import SeenCalls
from impls.masks import Mask
from impls.problem import Problem

EXACTLY = Interval.exactly


BEST = Candidate("chunked", "softmax", 1e-3, 0.9e-3, 1.1e-3, measured=True)
FASTER = SiteTimes(
    "a.py:1 · short", EXACTLY(0.4), "matmul", EXACTLY(2e-3), "sdpa", EXACTLY(1e-3), inside_s=2e-3
)
LONGER = SiteTimes(
    *("b.py:2 · [long]", EXACTLY(0.2), "matmul", EXACTLY(8e-3)),
    *("chunked", Interval(2e-3, 1e-3, 4e-3)),
)
UNKNOWN = SiteTimes("d.py:4", None, "flex", None, "sdpa", EXACTLY(1e-3), "how long is not [known]")
SILENT = SiteTimes("e.py:5", EXACTLY(0.05), "mha", None, why="nobody serves it")


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
            "  then  1 ms, 0.50× [0.50, 0.50] of it: sdpa",
        ],
        "b.py:2": [
            "b.py:2 · [long], 20\u00a0% of a step",
            "  now   8 ms a call: matmul",
            "  then  2 ms, 0.25× [0.12, 0.50] of it: chunked",
        ],
        "d.py:4": ["d.py:4", "  now   flex", "  how long is not [known]"],
        "e.py:5": ["e.py:5, 5\u00a0% of a step", "  now   mha", "  nobody serves it"],
    }
    assert said[-2:] == [none.sentence(), chunked.sentence()]
