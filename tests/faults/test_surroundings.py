"""Signals, plugins that hang or start processes, and machines that lack what others have."""

import shutil
import signal
from pathlib import Path

import pytest

from impls.loading import load_file

campaign = load_file(Path(__file__).with_name("campaign.py"))
Fault, Signal, TINY = campaign.Fault, campaign.Signal, campaign.TINY
pytestmark = pytest.mark.slow

ROWS = "\nfrom impls.spec import Variant\nROWS = []\n"
HANGS = """
import time
from pathlib import Path
{more}
Path({here!r}, "begun").touch()
time.sleep(99)
"""
IGNORES = "import signal\nfor one in (2, 15): signal.signal(one, signal.SIG_IGN)"
SLEEPS = "import subprocess\nsubprocess.Popen(['sleep', '99'])"
FORKS = "import os, time\nif os.fork() == 0:\n    time.sleep(99)"
INTERRUPTS = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), 2)
sys.meta_path.insert(0, Finder())
"""
NO_TEMPORARY = "import tempfile\ntempfile._candidate_tempdir_list = lambda: ['/proc/none']\n"
NO_PROC = """
unshare -rm true || exit 2
exec unshare -rm sh -c 'mount -t tmpfs none /proc && exec "$@"' sh "$@"
"""
NO_FOLDER = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
EVIL = "from pathlib import Path\nPath({outside!r}, 'ran').touch()\n"
RUN = ("run", "einsum", *TINY)
LIST, SHOW, REPORT = ("list",), ("show", "einsum"), ("report", "{run}")
COMPARE = ("compare", "{run}", "{run}")
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
HAS_BEGUN = lambda place: (place.here / "begun").exists()  # noqa: E731


def hangs(more=""):
    return lambda place: place.file("t.py", HANGS.format(here=str(place.here), more=more))


def table(code):
    return lambda place: place.file("t.py", code + ROWS)


def customised(code):
    """What Python runs at its start."""
    return lambda place: place.file("site/sitecustomize.py", code)


def begun(place):
    """Whether a run has made its folder."""
    return any((place.here / "results").glob("[!b]*/*/records.jsonl"))


def named_like_ours(place):
    """Modules in the folder of the call that have names of what is imported."""
    for name in (
        "torch",
        "rich",
        "numpy",
        "json",
        "impls/__init__",
        "attnbench/__init__",
        "sitecustomize",
        "msgspec",
        "asv/__init__",
    ):
        place.file(f"{name}.py", EVIL.format(outside=str(place.outside)))


def hostile_repository(place):
    place.file(".git/HEAD", "ref: refs/heads/main\n")
    place.file(".git/objects/x")
    place.file(".git/refs/x")
    place.file(
        ".git/config",
        f"[core]\nfsmonitor = touch {place.outside}/ran\n"
        f"[diff]\nexternal = touch {place.outside}/ran\n",
    )


def not_utf8(place):
    shutil.copytree(place.run, place.here / "re\udcffsults" / "box" / "tiny")


FAULTS = [
    *(
        Fault(
            name=f"a plugin that hangs at import{how}, {number.name}",
            within_s=30,
            words=("list", "--table", "t.py"),
            prepare=hangs(more),
            status=(130,),
            makes=("begun",),
            signals=[Signal(number, HAS_BEGUN)],
        )
        for how, more in (("", ""), (" and ignores signals", IGNORES))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ),
    Fault(
        name="a plugin that hangs at import, in run, SIGTERM",
        words=(*RUN, "--table", "t.py"),
        prepare=hangs(),
        status=(130,),
        makes=("begun",),
        signals=[Signal(signal.SIGTERM, HAS_BEGUN)],
    ),
    Fault(
        name="a process that an import started",
        words=("list", "--table", "t.py"),
        prepare=table(SLEEPS),
        status=(0,),
    ),
    Fault(
        name="a process that an import forked",
        words=("list", "--table", "t.py"),
        prepare=table(FORKS),
        status=(0, 2),
        within_s=30,
    ),
    Fault(
        name="commits compared, SIGTERM",
        words=("compare", "HEAD", "HEAD"),
        within_s=60,
        status=(2, 130),
        signals=[Signal(signal.SIGTERM, lambda place: any(place.temporary.glob("attnbench-*")))],
    ),
    *(
        Fault(
            name=f"a run, {number.name}{' to its group' if group else ''}",
            within_s=60,
            words=("run", "einsum", "matmul", "bmm", *TINY, "--budget", "20"),
            status=(130,),
            says="--resume",
            signals=[Signal(number, begun, group)],
        )
        for number, group in (
            (signal.SIGTERM, False),
            (signal.SIGHUP, False),
            (signal.SIGTERM, True),
        )
    ),
    *(
        Fault(
            name=f"Ctrl-C while {module} is imported",
            words=words,
            status=(130,),
            env={"PYTHONPATH": "{here}/site"},
            prepare=customised(INTERRUPTS.format(module=module)),
        )
        for module, words in {
            "attnbench.command.terminal": LIST,
            "attnbench.command.arguments": LIST,
            "argparse": LIST,
            "impls.asked": LIST,
            "attnbench.features.show.verb": LIST,
            "impls": LIST,
            "rich": LIST,
            "numpy": COMPARE,
            "matplotlib": REPORT,
        }.items()
    ),
    *(
        Fault(
            name=f"no folder for temporary files, {words[0]}",
            words=words,
            status=(0, 1, 2),
            env={"PYTHONPATH": "{here}/site", "TMPDIR": None},
            within_s=60,
            prepare=lambda place: (customised(NO_TEMPORARY)(place), table("")(place)),
        )
        for words in (("list", "--table", "t.py"), RUN, REPORT, ("compare", "HEAD", "HEAD"))
    ),
    *(
        Fault(
            name=f"no /proc, {words[0]}", words=words, shell=NO_PROC, status=(0, 1, 2), within_s=60
        )
        for words in (LIST, RUN, REPORT, COMPARE, ("env",))
    ),
    *(
        Fault(
            name=f"{limit}, {words[0]}",
            words=words,
            shell=f'ulimit {limit}; exec "$@"',
            status=(0, 1, 2),
            within_s=60,
        )
        for limit in ("-n 12", "-f 1")
        for words in (LIST, RUN, REPORT)
    ),
    *(
        Fault(
            name=f"a terminal of ASCII, {words[0]}",
            words=words,
            env=ASCII,
            status=(0, 1),
            within_s=60,
        )
        for words in (LIST, SHOW, RUN, REPORT, COMPARE)
    ),
    *(
        Fault(
            name=f"the C locale, {words[0]}", words=words, env=C_LOCALE, status=(0, 1), within_s=60
        )
        for words in (LIST, SHOW, RUN)
    ),
    *(
        Fault(
            name=f"no current folder, {words[0]}",
            words=words,
            shell=NO_FOLDER,
            status=(0, 1, 2),
            within_s=60,
        )
        for words in (LIST, RUN, REPORT, COMPARE)
    ),
    Fault(
        name="results whose path is not UTF-8",
        words=(*RUN, "--out", "re\udcffsults"),
        status=(0, 1, 2),
        makes=("re\udcffsults",),
        within_s=60,
    ),
    Fault(
        name="a report of a path that is not UTF-8",
        status=(0,),
        prepare=not_utf8,
        words=("report", "re\udcffsults/box/tiny"),
        makes=(),
        within_s=60,
    ),
    *(
        Fault(
            name=f"modules in the current folder, {words[0]}",
            words=words,
            within_s=60,
            prepare=named_like_ours,
            status=(0, 1),
        )
        for words in (LIST, RUN, REPORT)
    ),
    *(
        Fault(
            name=f"a hostile repository, {' '.join(words[:2])}",
            words=words,
            within_s=60,
            prepare=hostile_repository,
            status=(0, 1, 2),
        )
        for words in (RUN, COMPARE)
    ),
    *(
        Fault(
            name=f"{name}={value!r}, {words[0]}",
            words=words,
            env={name: value},
            status=(0, 1, 2),
            within_s=60,
        )
        for name, value, words in (
            ("COLUMNS", "1", LIST),
            ("COLUMNS", "0", COMPARE),
            ("COLUMNS", "x", LIST),
            ("TERM", "bogus", LIST),
            ("PYTHONOPTIMIZE", "2", SHOW),
            ("PYTHONWARNINGS", "error", LIST),
            ("PYTHONWARNINGS", "error", REPORT),
            ("TZ", "Nowhere/None", REPORT),
            ("PATH", "", RUN),
            ("OMP_NUM_THREADS", "banana", RUN),
            ("LC_ALL", "xx_XX.UTF-8", LIST),
            ("GIT_DIR", "/none", RUN),
            ("MPLBACKEND", "module://evil", REPORT),
            ("PYTHONINTMAXSTRDIGITS", "640", REPORT),
            ("PYTHONMALLOC", "debug", LIST),
        )
    ),
    Fault(
        name="a broken matplotlibrc",
        words=REPORT,
        status=(0,),
        prepare=lambda place: place.file("matplotlibrc", b"\xff\nbackend: nowhere\n"),
    ),
    Fault(
        name="a link that leads to itself",
        words=("report", "loop"),
        makes=(),
        prepare=lambda place: (place.here / "loop").symlink_to("loop"),
    ),
    Fault(
        name="a machine's folder that is a file",
        words=("report", "results"),
        status=(0, 2),
        prepare=lambda place: place.file("results/other", "x"),
    ),
    Fault(
        name="a line of 30 MB",
        words=("compare", "{run}", "{run}"),
        status=(0, 1, 2),
        prepare=lambda place: (place.run / "records.jsonl").write_text("x" * 30_000_000 + "\n"),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(bring_about, fault):
    bring_about(fault)
