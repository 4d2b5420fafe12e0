"""What a visit keeps, reads back, and refuses."""

import json

import pytest

from proofs import visit_kept
from proofs.gpu_visit import main
from proofs.visit_kept import Kept, NoVisit, Place

PLACE = Place("nvidia-h200-a1b2c3", "cuda")


def test_large_results_are_kept_in_pieces_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(visit_kept, "PIECE_BYTES", 400)
    kept, data = Kept(tmp_path / "out", tmp_path / "one", PLACE), bytes(range(256)) * 4
    (kept.results / "run" / "report").mkdir(parents=True)
    (kept.results / "run" / "records.jsonl").write_bytes(data)
    (kept.results / "run" / "report" / "index.html").write_text("a page")
    kept.write()
    files = [p for p in kept.folder.iterdir() if p.name.startswith("results")]
    assert 1 < len(files) <= visit_kept.MOST_PIECES
    assert all(p.stat().st_size <= 400 for p in files)
    back = Kept(tmp_path / "other", tmp_path / "two", PLACE, before=kept.folder)
    assert (back.results / "run" / "records.jsonl").read_bytes() == data
    assert not (back.results / "run" / "report").exists(), "a page can be rendered again"
    (back.results / "run" / "records.jsonl").write_bytes(b"")
    back.folder = kept.folder
    back.write()
    assert len([p for p in kept.folder.iterdir() if p.name.startswith("results")]) == 1


def summary(seconds=2.0, **changes):
    steps = {"env": {"status": "done", "seconds": seconds, "line": "it is done"}}
    told = {"machine": PLACE.machine, "device": PLACE.device, "steps": steps}
    return json.dumps({**told, "amiss": [], **changes}).encode()


def test_what_was_done_elsewhere_is_not_gone_on_with(tmp_path):
    there, new = tmp_path / "there", tmp_path / "new"
    there.mkdir()
    for other, places in (
        ({"machine": "nvidia-h200-d4e5f6"}, (new, there)),
        ({"device": "cpu"}, (there,)),
    ):
        (there / "summary.json").write_bytes(summary(**other))
        with pytest.raises(NoVisit, match=f"{there} holds a visit to "):
            Kept(places[0], tmp_path / "results", PLACE, *places[1:])


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("summary.json", b"{"),
        ("results.tar.gz", b"nonsense"),
        ("summary.json", summary(seconds="2")),
        ("letters", b""),  # somebody's own files
    ],
)
def test_a_folder_that_no_visit_left_is_refused_and_left_as_it_is(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    assert main(["--out", str(tmp_path)]) == 2
    assert [p.name for p in tmp_path.iterdir()] == [name]
