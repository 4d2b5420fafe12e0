"""The machine in a table: a fact a line, a sentence wherever there is none."""

import re

from attnbench.features.show import view

FACTS = {
    "machine": {
        "name": "box",
        "cpu": "a cpu",
        "cores": 2,
        "memory_bytes": 1 << 33,
        "gpus": [],
        "system": "Linux",
        "python": "3.11",
        "versions": {"torch": "2"},
        "torch_cuda": None,
        "compiler": None,
    },
    "settings": {"threads": 1, "environment": {"A": "1"}},
    "observed": {
        "cpu": {"mhz": 2600.0, "governor": "performance", "load_1min": 1.5, "load_5min": 0.25},
        "gpus": [],
    },
    "ceilings": {"flops": {"float32": 1e11}, "copy": {str(2 << 20): 5e10}},
    "noise": [{"call_s": 0.002, "floor": 0.004, "apart": 0.011, "trials": 20, "pairs": 160.0}],
}


def test_each_fact_has_its_line(shown):
    text = shown(view.show_env, FACTS)
    for words in (
        "8.0 GiB",
        "none that NVIDIA",
        "a CPU build",
        "compiled variants are unavailable",
        "100.0 GFLOP/s",
        "copy of 2 MiB",
        "50.0 GB/s",
        "2600 MHz; governor: performance",
        "1.50 over a minute, 0.25 over five",
    ):
        assert words in text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert all(len(re.split(r"\s{2,}", line)) == 2 for line in lines)


def test_the_noise_floor_says_what_it_rests_on(shown):
    line = next(
        x for x in shown(view.show_env, FACTS).splitlines() if x.startswith("noise at 2 ms")
    )
    assert "0.40% (20 comparisons of a variant with itself, of 160 pairs" in line
    assert "up to 1.10% off one" in line


def test_what_the_system_does_not_say_is_said(shown):
    cpu = {**FACTS["observed"]["cpu"], "mhz": "the system does not say"}
    text = shown(view.show_env, {**FACTS, "observed": {"cpu": cpu, "gpus": []}})
    assert "the system does not say; governor" in text


def test_a_gpu_shows_its_clocks_or_why_it_does_not(shown):
    gpus = [{"uuid": "GPU-1", "sm_mhz": 1980, "power_w": "the driver doesn't say its power: MIG"}]
    text = shown(view.show_env, {**FACTS, "observed": {**FACTS["observed"], "gpus": gpus}})
    assert "uuid GPU-1, sm mhz 1980, power w the driver doesn't say its power: MIG" in text


def test_long_facts_wrap_in_a_pipe(in_a_pipe, reason):
    machine = {**FACTS["machine"], "cpu": reason, "versions": {"torch": reason}}
    text = in_a_pipe(view.show_env, {**FACTS, "machine": machine})
    assert f"cpu {reason}, 2 cores" in text
    assert f"versions torch {reason} " in text
