"""What a run's header keeps of what was known of its machine when it began."""

import json

from attnbench.core.evidence import save_beside
from attnbench.core.machine import this_machine
from attnbench.core.record import PROTOCOL
from attnbench.core.store import read_header
from attnbench.sweep import start
from attnbench.sweep.presets import PRESETS


def begun(out):
    grid = PRESETS["smoke"].with_(seq=("16",), device="cpu")
    run = start.begin(["einsum"], grid, [], out, seed=0, threads=1)
    run.folder.close()
    return read_header(run.folder.path)


def test_a_header_keeps_what_the_self_check_said(tmp_path):
    assert begun(tmp_path)["selfcheck"] is None
    kept = {"line": "ruler self-check: 2/2 on this machine", "date": "2026-01-01T00:00:00+00:00"}
    facts = {"protocol": PROTOCOL, **kept, "versions": {"torch": "2"}, "outcomes": [{"deed": "x"}]}
    path = save_beside(tmp_path, this_machine().name, "selfcheck.json", facts)
    assert begun(tmp_path)["selfcheck"] == kept
    path.write_text(json.dumps({**facts, "protocol": PROTOCOL - 1}))
    assert begun(tmp_path)["selfcheck"] is None


def test_what_measures_is_the_code_of_four_folders():
    files = start.sources()["ruler"]
    folders = {file.relative_to(files[0].parent).parts[0] for file in files}
    assert {"core", "gate", "meter", "sweep"} == {f for f in folders if not f.endswith(".py")}
    assert any(file.parts[-2:] == ("meter", "clocks.py") for file in files)
