"""The whole choice on a machine whose times are known, though not to its model."""

import pytest

from proofs import regret


@pytest.mark.slow
def test_where_the_machine_stands_still_the_choice_keeps_what_it_promises(capsys):
    asked = regret.of_made_up(0.03)
    assert len(asked) == 74
    assert regret.shown(asked), capsys.readouterr().out


@pytest.mark.slow
def test_where_times_say_nothing_it_is_silent():
    asked = regret.of_made_up(0.5)
    assert sum(a.choice.winner is not None for a in asked) < len(asked) / 4
