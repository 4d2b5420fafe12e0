"""What becomes of data that nobody reads any more, or that there is no room for."""

import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.command.terminal import CannotWrite, Stream, kept_open

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")
VERB = "import sys; from attnbench.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", [["--version"], ["list"]])
def test_a_full_disk_is_a_sentence(words):
    with FULL.open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", VERB, *words],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert done.stderr == "attnbench: can't write to the output: No space left on device\n"


def test_an_output_that_was_closed_before_the_program_began_takes_all_and_keeps_nothing(
    monkeypatch,
):
    monkeypatch.setattr(sys, "stdout", None)
    with kept_open():
        print("data", flush=True)


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_it_is_told_once(monkeypatch):
    with FULL.open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with kept_open():
            print("data")
            with pytest.raises(CannotWrite, match="No space left"):
                sys.stdout.flush()
            print("dropped", flush=True)


def test_what_has_no_file_behind_it_is_not_written_to_again():
    tried = []

    class Gone:
        def write(self, text):
            tried.append(text)
            raise BrokenPipeError

        def fileno(self):
            raise OSError

    out = Stream(Gone())
    assert [out.write("one"), out.write("more")] == [3, 4]
    assert tried == ["one"]
