"""What is timed in parts, and what selects keys: shown beside the time and the fidelity."""

import msgspec

from attnbench.features.report import page
from attnbench.features.run import view
from tests.report.page import runs
from tests.report.page.runs import NEAR, filled, timed

PARTS = {"selector": 2.5e-4, "attention": 1.5e-3}


def selects(kept=0.85, parts=PARTS):
    distance = msgspec.structs.replace(runs.far(0.7), kept=kept)
    return timed("moba", 2e-3, computes=NEAR, distance=distance, parts=parts)


def test_run_and_the_page_name_the_parts_below_the_variant(shown, tmp_path):
    words = "selector 0.250 ms, attention 1.50 ms; 85 % of softmax's weight on what it selects"
    records = [timed("sdpa", 4e-3), selects()]
    assert words in " ".join(shown(view.show_results, records).split())
    html = page.render(filled(tmp_path, records)).replace("&#39;", "'").replace("\xa0", " ")
    assert f"<small>{words}</small>" in html
    plain = page.render(filled(tmp_path / "plain", [timed("sdpa", 4e-3), selects(None, {})]))
    assert "<small>selector" not in plain
