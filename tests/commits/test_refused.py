"""``attnbench history``: what can't be done, each with a sentence that says what to do."""

import pytest

from attnbench import cli
from attnbench.core.machine import this_machine
from attnbench.features.commits.asv import entry, save_entry


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "'nowhere' is no commit of"),
        (["HEAD~9..HEAD"], "'HEAD~9' is no commit of"),
        (["HEAD..HEAD"], "holds no commit"),
        (["HEAD...HEAD~1"], "has three dots"),
        (["--all"], "shows what there is"),
        (["HEAD", "--bench", "("], "is no regular expression"),
        (["HEAD", "--table", "rows.py"], "--table says nothing to asv"),
        (["compare", "HEAD", "nowhere"], "'nowhere' is no commit of"),
        (["compare", "HEAD", "HEAD~1", "--json", "--markdown"], "two forms of one answer"),
        (["compare", "HEAD", "HEAD~1", "--table", "/elsewhere/rows.py"], "is not in"),
        (["compare", "HEAD", "HEAD~1", "--preset", "nothere"], "there is no preset 'nothere'"),
        (["export", "nowhere"], "nowhere"),
    ],
)
def test_what_can_not_be_done_is_refused_in_a_sentence(clone, words, says, refused):
    try:
        assert says in refused(*words)
    except SystemExit as stopped:  # argparse's own
        assert stopped.code == 2


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--factor", "1"),
        ("--factor", "x"),
        ("--rounds", "0"),
        ("--rounds", "many"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(clone, capsys, option, text):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["history", "HEAD", option, text])
    assert stopped.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("words", [["HEAD"], ["HEAD~1..HEAD"], ["compare", "HEAD~1", "HEAD"]])
def test_changes_that_no_commit_holds_are_named(pulls, clone, words, refused):
    (clone / "impls" / "speed").write_text("changed")
    said = refused(*words)
    assert "impls/speed has changes that no commit holds" in said
    assert "git stash" in said
    pulls.git(clone, "commit", "--quiet", "--all", "-m", "now it does")
    (clone / "impls" / "mine.py").write_text("new")
    assert "impls/mine.py" in refused(*words)


def test_changes_say_nothing_of_commits_that_are_not_checked_out(clone, asked):
    (clone / "impls" / "speed").write_text("changed")
    assert cli.main(["history", "HEAD~2..HEAD~1"]) == 0


@pytest.mark.parametrize("words", [["HEAD~3..HEAD"], ["compare", "HEAD~1", "HEAD"]])
def test_a_shallow_clone_is_told_how_to_fetch_the_rest(
    pulls, clone, tmp_path, monkeypatch, words, refused
):
    cut = tmp_path / "cut"
    pulls.git(tmp_path, "clone", "--quiet", "--depth", "1", clone.as_uri(), str(cut))
    monkeypatch.chdir(cut)
    said = refused(*words)
    assert "shallow clone" in said
    assert "git fetch --unshallow" in said
    assert "fetch-depth: 0" in said


@pytest.mark.parametrize("words", [["HEAD"], ["compare", "HEAD~1", "HEAD"]])
def test_outside_a_checkout_that_is_said(tmp_path, monkeypatch, words, refused):
    """Where neither we stand in one nor what is installed lies in one."""
    elsewhere = tmp_path / "site-packages"
    (elsewhere / "impls").mkdir(parents=True)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr("impls.__file__", str(elsewhere / "impls" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    said = refused(*words)
    assert "is in no git checkout (fatal: not a git repository" in said
    assert "run attnbench from a clone" in said


def test_rows_of_ones_own_need_a_checkout_where_we_stand(tmp_path, monkeypatch, refused):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert "is in no git checkout" in refused("compare", "A", "B", "--table", "rows.py")


def test_without_git_that_is_said(clone, monkeypatch, refused):
    monkeypatch.setattr("impls.__file__", str(clone / "impls" / "__init__.py"))
    monkeypatch.setenv("PATH", "")
    assert "git can't be run" in refused("HEAD")


@pytest.mark.parametrize("words", [["HEAD"], ["export", "nowhere"]])
def test_without_asv_that_is_said(clone, monkeypatch, words, refused):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = refused(*words)
    assert "asv is not installed" in said
    assert "pip install 'asv>=0.6.5,<0.7'" in said


@pytest.mark.parametrize("text", [None, "{", '{"version": 1}'])
def test_without_a_configuration_that_can_be_read_that_is_said(clone, text, refused):
    file = clone / "asv.conf.json"
    file.unlink() if text is None else file.write_text(text)
    said = refused("HEAD")
    assert (
        "there is no asv.conf.json" if text is None else "git checkout -- asv.conf.json"
    ) in said


def test_a_machine_file_that_is_damaged_is_said(clone, tmp_path, refused):
    (tmp_path / "home" / ".asv-machine.json").write_text("{")
    assert "mend it or move it away" in refused("HEAD")


def machine_folder(clone, **changes):
    mine = entry(this_machine().to_dict())
    save_entry(clone / "results" / "asv", {**mine, **changes})
    return mine


def test_results_of_another_machine_under_our_name_are_refused(clone, refused):
    machine_folder(clone, cpu="another")
    said = refused("HEAD")
    assert "are of another machine (cpu another, here " in said
    assert "move the folder away" in said


def test_results_of_other_machines_are_mentioned_and_left_alone(clone, asked, capsys):
    machine_folder(clone, machine="somewhere-else", cpu="another")
    machine_folder(clone)
    assert cli.main(["history", "HEAD"]) == 0
    assert "holds results of somewhere-else too" in capsys.readouterr().err
