"""The campaign's driver, a finished run for all faults, and folders for each."""

from pathlib import Path

import pytest

from impls.loading import load_file

campaign = load_file(Path(__file__).with_name("campaign.py"))


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A run of two cells, which no fault changes: each has a copy."""
    return campaign.make_run(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def bring_about(tiny_run, tmp_path):
    """Runs one fault in folders of its own and asserts what must hold of every one."""
    return lambda fault: campaign.run(fault, campaign.make_place(tmp_path / "fault", tiny_run))
