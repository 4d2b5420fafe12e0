"""What lies in the gallery, and the project's own answer, are made of what is committed."""

import pytest

from proofs import answer, gallery


@pytest.mark.slow
@pytest.mark.parametrize("report", gallery.REPORTS)
def test_a_committed_report_is_made_of_its_run_to_the_last_byte(report):
    with gallery.new_report(report, gallery.REPORTS[report]) as new:
        assert gallery.different(report, new) == []


@pytest.mark.slow
def test_the_answer_is_made_of_what_is_committed_and_a_false_sentence_is_named(monkeypatch):
    assert answer.new_page() == answer.PAGE.read_text()
    monkeypatch.setattr(answer, "HALF", 0.01)  # of softmax, where operators keep up to 0.47
    with pytest.raises(answer.NotSoAnyMore, match=r"linear\.elu .* model ends below half"):
        answer.new_page()
