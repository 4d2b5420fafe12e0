"""What lies in the gallery is what the code makes of the committed runs."""

import pytest

from proofs import gallery


@pytest.mark.slow
@pytest.mark.parametrize("report", gallery.REPORTS)
def test_a_committed_report_is_made_of_its_run_to_the_last_byte(report):
    with gallery.made(report, gallery.REPORTS[report]) as new:
        assert gallery.different(report, new) == []
