"""git, as whoever tests with it: nobody's configuration, nobody's name; and copies of a folder."""

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
