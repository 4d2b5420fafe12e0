"""What a pull request's author reads: a comment, a table, a line as each cell ends."""

import json

from attnbench.features.commits import view


def test_a_comment_is_short_findings_first_and_the_unchanged_folded(pulls, repository):
    text = view.markdown(pulls.compared(repository, "slower"))
    before, folded = text.split("<details>")
    assert text.startswith("### Attention, ")
    assert "1 worse, 1 unchanged" in before
    assert "**worse (SLOWER)**" in before
    assert "einsum" not in before
    assert "unchanged (EQUIVALENT)" in folded
    assert "1.050" in before


def test_a_comment_says_why_and_what_came_and_went(pulls, repository):
    text = view.markdown(pulls.compared(repository, "wrong"))
    assert "**wrong**" in text
    assert "row 3 is off" in text
    assert "FASTER" not in text.split("<sub>")[0]
    assert "- added: fresh" in view.markdown(pulls.compared(repository, "fresh"))
    assert "- removed: einsum" in view.markdown(pulls.compared(repository, "gone"))


def test_a_comment_on_nothing_says_so(pulls, repository):
    text = view.markdown(pulls.compared(repository, "same"))
    assert "Nothing that was compared has changed." in text


def test_marks_in_a_reason_do_not_break_the_comment():
    assert view.escape_markdown("a|b `c`\nd <e>") == "a\\|b \\`c\\` d \\<e>"


def test_the_terminal_shows_the_same(pulls, repository, capsys):
    view.pull_request(pulls.compared(repository, "slower"))
    text = capsys.readouterr().out
    assert "worse (SLOWER)" in text
    assert "1 worse, 1 unchanged" in text
    assert text.index("matmul") < text.index("einsum")


def test_each_cell_is_a_line_as_it_ends(pulls, repository):
    seen = []
    pulls.compared(repository, "slower", asked=["matmul"], watch=seen.append)
    pulls.compared(repository, "broken", asked=["matmul"], watch=seen.append)
    slower, broken = (view.line(cell, "base", "head") for cell in seen)
    assert "matmul on forward, mask causal, 16 tokens" in slower
    assert "head is SLOWER than base: 1.050 of its time" in slower
    assert broken.endswith("failed: it raised ModuleNotFoundError")


def test_what_will_be_done_is_said_first(pulls, repository):
    seen = []
    pulls.compared(repository, "same", plan=lambda some: seen.append(view.plan(some, 90.0)))
    assert seen[0].startswith("comparing 2 cells of 2 variants, in 4 to 16 rounds")


def test_all_of_it_can_be_sent(pulls, repository):
    sent = json.loads(json.dumps(pulls.compared(repository, "wrong").to_dict(), allow_nan=False))
    assert sent["counts"] == {"wrong": 1, "unchanged": 1}
    assert sent["cells"][0]["status_b"] == "wrong"
    assert sent["cells"][1]["pairs"]["comparison"]["verdict"] == "EQUIVALENT"
