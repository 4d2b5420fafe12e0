"""Some of the planted programs are told rightly; ``proofs/planted.py`` tries them all."""

import pytest

from proofs import planted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trap_causal_but_one", "two_sites_two_faults"])
def test_what_is_said_of_a_program_is_true_and_a_wrong_fact_is_named(tmp_path, name):
    program, calls = planted.ALL[name], planted.capture(name, tmp_path)
    assert planted.faults(program, calls) == []
    facts = {mark: fact for mark, fact in program.items() if isinstance(fact, dict)}
    for mark, fact in facts.items():
        wrong = program | {
            mark: fact | {"kernel": "math (of another program)", "mend": ["backend"]}
        }
        assert planted.faults(wrong, calls)
