"""What a recall run plans: who takes part and in which order, and sentences for what can't be."""

from dataclasses import replace

import pytest

import impls
from attnbench.core.machine import this_machine
from attnbench.features.quality import recall
from attnbench.features.quality.recall import NotTrainable, made, scan_of, settings_of

CPU = recall.PRESETS["cpu"]


def planned(*names, preset=CPU, seeds=(0, 1, 2), settings=None, machine=None, table=None):
    return made(
        table or impls.table(),
        names,
        preset,
        settings or preset.settings,
        machine or this_machine(),
        seeds=seeds,
        threads=1,
    )


def labels(plan):
    return [row.label for row in plan.taking_part[plan.settings[0]]]


def test_the_small_preset_takes_six_that_differ_in_kind():
    plan = planned()
    assert labels(plan) == list(recall.SIX) and not plan.left_out
    assert plan.trainings == 18
    computes = {row.computes for row in plan.taking_part[plan.settings[0]]}
    assert len(computes) == 4


def test_softmax_attention_is_always_among_them():
    assert labels(planned("linear.elu")) == ["sdpa", "linear.elu"]


def test_one_seed_trains_everybody_in_random_order_and_another_in_another():
    plan = planned()
    jobs = list(plan.jobs(plan.settings[0], 5.0))
    orders = [[j.variant.label for j in jobs if j.seed == seed] for seed in plan.seeds]
    assert [j.seed for j in jobs] == sorted(j.seed for j in jobs)
    assert all(sorted(order) == sorted(labels(plan)) for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert plan.timing(plan.settings[0]).seed not in plan.seeds


@pytest.mark.parametrize(
    ("name", "status", "said", "remedy"),
    [
        ("flash_attn2", "unavailable", "runs on cuda", "flash-attn"),
        ("linformer", "unsupported", "takes the masks none", "attnbench show"),
        ("numpy", "unsupported", "it has no backward", "attnbench show"),
        ("mha", "unsupported", "is a layer", "attnbench list"),
        ("ring", "unsupported", "over several processes", "attnbench list"),
    ],
)
def test_who_cannot_train_is_a_row_with_its_sentence_and_the_others_go_on(
    name, status, said, remedy
):
    plan = planned(name, "linear.elu")
    assert labels(plan) == ["sdpa", "linear.elu"]
    (left,) = (each.row() for each in plan.left_out)
    assert left["status"] == status and left["variant"] == name
    assert said in left["reason"] and remedy in left["remedy"]


def test_without_names_everybody_takes_part_who_can_and_is_not_softmax_again():
    found = labels(planned(preset=replace(CPU, variants=())))
    assert found[0] == "sdpa" and "einsum" not in found
    assert {"gla", "delta", "ssd", "linear.elu", "topk", "performer", "mean_v"} <= set(found)
    assert not {"linformer", "lsh", "mha", "numpy"} & set(found)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pairs": (1, 4)}, "a single pair is recalled by everybody"),
        ({"seq": (64,)}, "no room to ask"),
        ({"pairs": (200,), "seq": (900,)}, "needs as many keys"),
        ({"pairs": tuple(range(2, 40)), "seq": (900,)}, "give fewer"),
    ],
)
def test_a_task_that_cannot_be_is_refused_in_a_sentence(changes, said):
    with pytest.raises(NotTrainable, match=said):
        settings_of(CPU, **changes)


def test_a_width_that_its_heads_do_not_divide_is_refused():
    two = replace(CPU, settings=(CPU.settings[0].with_(heads=2),))
    with pytest.raises(NotTrainable, match="not a multiple"):
        settings_of(two, width=(33,))


def test_a_device_that_is_not_here_is_refused_in_a_sentence():
    machine = replace(this_machine(), gpus=())
    with pytest.raises(NotTrainable, match="device cuda is not here"):
        planned(preset=recall.PRESETS["gpu"], machine=machine)


def test_lengths_and_widths_are_settings_of_their_own():
    found = settings_of(CPU, seq=(96, 128), width=(16, 32), steps=50)
    assert [(s.seq, s.width, s.steps) for s in found] == [
        (96, 16, 50),
        (96, 32, 50),
        (128, 16, 50),
        (128, 32, 50),
    ]


def test_the_scan_tries_everything_with_everything():
    found = scan_of(CPU.settings)
    assert len(found) == len({s.slug for s in found}) == 9
    assert {(s.width, s.rate) for s in found} == {
        (w, r) for w in recall.SCANNED["width"] for r in recall.SCANNED["rate"]
    }


def test_a_job_is_what_was_sent():
    (job, *_) = planned("linear.taylor?features=8").jobs(CPU.settings[0], 3.0)
    assert type(job).from_dict(job.to_dict()) == job
