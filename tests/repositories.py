"""git, as whoever tests with it: nobody's configuration, nobody's name."""

import os
import subprocess

NAMES = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@a", "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@a", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
}  # fmt: skip


def git(root, *words, **more):
    """What it says."""
    env = {**os.environ, **NAMES, **more}
    return subprocess.check_output(["git", *words], cwd=root, env=env, text=True).strip()
