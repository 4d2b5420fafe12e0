"""The gate on decoders that keep a memory of their own, honest and not."""

from pathlib import Path

import pytest
import torch

import impls
from attnbench.gate.inputs import Call, make, put
from impls.loading import load_file, load_function
from impls.spec import Unavailable, Unsupported

layers = load_file(Path(__file__).with_name("layers.py"))
problem_of = layers.problem_of
verdict = layers.verdict


DECODE = problem_of(level="core", phase="decode", q_len=2, kv_len=19)


class Summing:
    """Values summed so far: its own operator, with a state of one row."""

    def __init__(self, problem):
        self.problem = problem

    def __call__(self, q, k, v):
        raise AssertionError("a decoder with a memory is not called whole")

    def remember(self, k, v):
        return v.sum(2, keepdim=True)

    def step(self, q, k, v, memory):
        out = memory + v.cumsum(2)
        return out, out[:, :, -1:]


def sums(problem):
    def define(q, k, v, rows):
        return v.cumsum(2)[:, :, rows + problem.kv_len - problem.q_len]

    return define


def test_a_decoder_is_handed_the_new_tokens_and_what_it_remembered():
    call = Call(DECODE, Summing(DECODE), make(DECODE, 0))
    want = call.leaves[2].cumsum(2)[:, :, -2:]
    torch.testing.assert_close(call.forward(), want)
    other = make(DECODE, 1)
    call.load(other)
    torch.testing.assert_close(call.forward(), other.v.cumsum(2)[:, :, -2:])
    assert verdict(Summing(DECODE), DECODE, sums(DECODE)).reason is None


def test_a_decoder_whose_first_token_is_new_remembers_nothing():
    problem = DECODE.with_(q_len=2, kv_len=2)
    assert verdict(Summing(problem), problem, sums(problem)).reason is None


class InPlace(Summing):
    def step(self, q, k, v, memory):
        out = memory + v.cumsum(2)
        memory.copy_(out[:, :, -1:])
        return out, memory


class Fickle(Summing):
    """Changes its memory only where other tokens come than those before."""

    last = None

    def remember(self, k, v):
        self.last = None
        return super().remember(k, v)

    def step(self, q, k, v, memory):
        out, after = super().step(q, k, v, memory)
        if self.last is not None and not torch.equal(v, self.last):
            memory.add_(1)
        self.last = v.clone()
        return out, after


class NoMemory(Summing):
    def step(self, q, k, v, memory):
        return memory + v.cumsum(2)


class Stale(Summing):
    """Remembers the first tokens it ever saw."""

    kept = None

    def remember(self, k, v):
        self.kept = super().remember(k, v) if self.kept is None else self.kept
        return self.kept


class Peeking(Summing):
    """Looks the new values up where the last call left them, and answers before it is asked."""

    new = None

    def remember(self, k, v):
        state = super().remember(k, v)
        return state if self.new is None else (state + self.new.cumsum(2),)

    def step(self, q, k, v, memory):
        self.new = v
        return (memory[0], memory) if isinstance(memory, tuple) else super().step(q, k, v, memory)


class Standing(Summing):
    """Returns the memory it was given, never one with the new tokens in it."""

    def step(self, q, k, v, memory):
        return memory + v.cumsum(2), memory


class Forgetful(Summing):
    """Returns no memory to go on from."""

    def step(self, q, k, v, memory):
        return memory + v.cumsum(2), None


class OneAnswer(Summing):
    """Writes its first answer into the memory, and gives it for any other token."""

    def remember(self, k, v):
        return [super().remember(k, v)]

    def step(self, q, k, v, memory):
        if len(memory) == 1:
            memory.append(memory[0] + v.cumsum(2))
            return memory[1], [memory[1][:, :, -1:]]
        return memory[1] + v.sum() * 1e-3, [memory[1][:, :, -1:]]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (InPlace, "changed the memory"),
        (Fickle, "changed the memory"),
        (NoMemory, "something else than (out, memory)"),
        (Stale, "two steps are not as one"),
        (Peeking, "moved when key"),
        (Standing, "two steps are not as one"),
        (Forgetful, "can't go on from the memory"),
        (OneAnswer, "two steps are not as one"),
    ],
)
def test_a_faulty_decoder_is_wrong(fault, says):
    found = verdict(fault(DECODE), DECODE, sums(DECODE))
    assert found.reason is not None and says in found.reason


def test_a_second_step_that_finds_no_memory_is_not_wrong():
    class NoRoom(Summing):
        def step(self, q, k, v, memory):
            if isinstance(memory, list):  # as the step before has left it
                raise torch.OutOfMemoryError("CUDA out of memory")
            out, memory = super().step(q, k, v, memory)
            return out, [memory]

    with pytest.raises(torch.OutOfMemoryError):
        verdict(NoRoom(DECODE), DECODE, sums(DECODE))


# ---- where the memory lies -----------------------------------------------------------------------


def places(memory):
    if isinstance(memory, torch.Tensor):
        return [memory.data_ptr()]
    return [x for part in memory for x in places(part)] if isinstance(memory, (list, tuple)) else []


def decoders():
    problem = problem_of(level="core", phase="decode", q_len=1, kv_len=19)
    for variant in impls.table().rows.values():
        asked = problem.with_(level=variant.level)
        if variant.supports(asked) is None:
            yield variant.name, asked


@pytest.mark.parametrize(("name", "problem"), list(decoders()))
def test_what_a_decoder_of_ours_remembers_stays_at_its_address(name, problem):
    variant = impls.table().find(name)
    try:
        attend = load_function(variant.build)(problem, **variant.chosen)
    except (Unavailable, Unsupported) as error:
        pytest.skip(str(error))
    call = Call(problem, attend, make(problem, 0))
    first, before = places(call.memory), call.forward()
    assert bool(first) == call.steps
    call.load(make(problem, 1))
    assert places(call.memory) == first
    assert not call.moves
    assert not torch.equal(call.forward(), before)
    call.load(make(problem, 0))
    assert torch.equal(call.forward(), before)


class Elsewhere(Summing):
    """What it remembers is nothing that could be put anywhere."""

    def remember(self, k, v):
        return {"sum": v.sum(2, keepdim=True), "by": object()}

    def step(self, q, k, v, memory):
        out, new = super().step(q, k, v, memory["sum"])
        return out, {**memory, "sum": new}


def test_a_memory_that_lies_elsewhere_each_time_is_told():
    call = Call(DECODE, Elsewhere(DECODE), make(DECODE, 0))
    other = make(DECODE, 1)
    call.load(other)
    assert call.moves
    torch.testing.assert_close(call.forward(), other.v.cumsum(2)[:, :, -2:])


ONE = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("there", "values"),
    [
        (ONE, torch.ones(3, 2).mT),
        (ONE, torch.ones(2, 3).double()),
        (ONE, torch.ones(3, 2)),
        (ONE[:1].expand(2, 3), torch.ones(1, 3).expand(2, 3)),
        (ONE, 1),
        ([ONE], (ONE,)),
        ([ONE], [ONE, ONE]),
        ((1, ONE), (2, ONE)),
        ({"a": ONE}, {"b": ONE}),
        ({1}, {1}),
    ],
)
def test_only_what_is_made_alike_can_be_put_in_anothers_place(there, values):
    assert not put(there, values)


def test_a_memory_is_put_in_anothers_place_part_by_part():
    there = ([torch.zeros(2, 2)], {"b": torch.zeros(3)}, 4, None, "x")
    assert put(there, ([torch.ones(2, 2)], {"b": torch.ones(3)}, 4, None, "x"))
    assert there[0][0].sum() + there[1]["b"].sum() == 7
