"""What a report shows: runs by their names, and regimes judged by their own run's margin."""

from pathlib import Path

import pytest

from attnbench.report.scenes import ReportRun, scenes
from impls.loading import load_file

runs = load_file(Path(__file__).parent / "page" / "runs.py")
timed, at = runs.timed, runs.at


def ran(path, records=(), **header):
    return ReportRun(0, Path(path), header, records, range(1, len(records) + 1))


@pytest.mark.parametrize(
    ("folder", "header", "name"),
    [
        ("box/one", {"run": "one"}, "one on box"),
        ("box/copy", {"run": "one"}, "copy (one) on box"),
        ("box/one", {}, "one on box"),
        ("box/one", {"run": "one", "machine": {"name": "slow"}}, "one on slow"),
    ],
)
def test_a_run_is_called_by_its_own_name_and_by_its_folder_s_where_that_is_another(
    folder, header, name
):
    assert ran(folder, **header).name == name


def places(*, apart):
    """Two that change places by a tenth, in a run whose twins came out so far apart."""
    ahead, behind = 10e-3, 11.5e-3
    return [
        timed("a", ahead, at(64)),
        timed("b", behind, at(64)),
        timed("a", behind, at(128)),
        timed("b", ahead, at(128)),
        *(
            timed(name, median, at(64), kernels=["flash_fwd"])
            for name, median in (("one", 0.1), ("other", 0.1 * (1 + apart)))
        ),
    ]


@pytest.mark.parametrize(("apart", "sure"), [(0.01, "clear"), (0.2, "a tie of 2")])
def test_a_lead_that_twins_of_the_run_have_too_is_none_and_nothing_overtakes(apart, sure):
    records = places(apart=apart)
    (scene,) = scenes([ran("box/one", records)])
    assert [standing.sure for standing in scene.standings] == [sure, sure]
    assert bool(scene.crossings) == (sure == "clear")
