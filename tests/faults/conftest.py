"""A finished run for all faults, and folders for each."""

import pytest

from tests.faults import campaign


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A run of two cells, which no fault changes: each has a copy."""
    return campaign.make_run(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def bring_about(tiny_run, tmp_path):
    """Runs one fault in folders of its own and asserts what must hold of every one."""
    return lambda fault: campaign.run(fault, campaign.Place(tmp_path / "fault", tiny_run))
