"""``attnbench choose``, called as its users call it."""

import pytest

from attnbench import cli


@pytest.fixture
def chooses(capsys):
    """Calls the verb; returns its status, data and prose."""

    def call(*words):
        status = cli.main(["choose", *map(str, words)])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out if "--json" in words else " ".join(said.out.split()), said.err

    return call
