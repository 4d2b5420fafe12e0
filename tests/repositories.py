"""git, as whoever tests with it: nobody's configuration, nobody's name; copies of a folder, and
repositories of kernels of one's own.
"""

import os
import shutil
import stat
import subprocess

NAMES = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@a", "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@a", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
}  # fmt: skip


def git(root, *words, **more):
    """What it says."""
    env = {**os.environ, **NAMES, **more}
    return subprocess.check_output(["git", *words], cwd=root, env=env, text=True).strip()


def copied(folder, to, **more):
    """A copy that can be written to, though the checkout may be read-only."""
    shutil.copytree(folder, to, **more)
    for path in (to, *to.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWUSR)


PROJECT = """
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "my-kernels"
version = "0.1"

[project.entry-points."attnbench.variants"]
mykernels = "mykernels.rows:ROWS"
"""
ROW = """Variant(
    "my.good", "written out", "mine", "softmax", "mykernels.core:build",
    masks=("none", "causal"), gqa=False, cross=False,
)"""
ROWS = f"from impls.spec import Variant\n\nROWS = [{ROW}]\n"
CORE = """
import torch


def build(problem):
    hidden = ~torch.from_numpy(problem.mask.visible(problem.shape))

    def attend(q, k, v):
        for _ in range(TIMES):
            scores = (q @ k.mT * problem.scale).masked_fill(hidden, -torch.inf)
            out = scores.softmax(-1) @ v
        return out

    return attend
"""
RAGGED = """
    if problem.kv_len % 64 > 1 and str(problem.mask) == "causal":
        last = problem.kv_len // 64 * 64  # a row of the last block sees a key too many
        hidden[..., last:, last:] &= hidden[..., last:, last:].roll(1, -1)
"""
"""What a build begins with that is wrong where the last block of 64 is not full."""


class Kernels:
    """A repository with a distribution of kernels, in a layout: ``flat`` or ``src``.

    Its first commit multiplies once; each commit has rows, and code, of its own.
    """

    def __init__(self, root, layout="flat", project=PROJECT):
        self.root = root
        self.package = root / ("src" if layout == "src" else ".") / "mykernels"
        self.package.mkdir(parents=True)
        git(root, "init", "--quiet", "--initial-branch", "main")
        (root / ".gitignore").write_text("__pycache__/\n*.egg-info/\n.asv/\nresults/\nreports/\n")
        (root / "pyproject.toml").write_text(project)
        (self.package / "__init__.py").touch()
        (self.package / "rows.py").write_text(ROWS)
        self.commit("once", times=1)

    def commit(self, subject, times=1, ragged=False):
        """A commit in which a call multiplies so many times."""
        core = CORE.replace("TIMES", str(times))
        if ragged:
            core = core.replace("\n    def attend", RAGGED + "\n    def attend")
        (self.package / "core.py").write_text(core)
        git(self.root, "add", "--all")
        git(self.root, "commit", "--quiet", "--allow-empty", "-m", subject)
        return git(self.root, "rev-parse", "HEAD")
