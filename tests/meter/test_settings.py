"""Settings: what a process must be started with, and what it says where it was not."""

from types import SimpleNamespace

import pytest
import torch

from attnbench.core import settings
from attnbench.core.settings import Settings, environment
from attnbench.gate.watch import changes, snapshot


@pytest.mark.parametrize("threads", [1, 3])
def test_every_library_is_told_the_same_number_of_threads(threads):
    told = environment(threads)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    assert [told[name] for name in names] == [str(threads)] * 3
    assert told["OMP_WAIT_POLICY"] == "passive"
    assert all(isinstance(value, str) for value in told.values())


def test_apply_sets_threads_and_the_precision_of_float32_products():
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        settings.apply(Settings(threads=2, tf32=True))
        assert torch.get_num_threads() == 2
        assert torch.get_float32_matmul_precision() == "high"
        settings.apply(Settings(threads=1))
        assert torch.get_num_threads() == 1
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


@pytest.mark.parametrize(("gpu", "stream"), [(1, 0), (0, 640)])
def test_another_current_gpu_or_stream_is_noticed(monkeypatch, gpu, stream):
    at = [0, 0]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", ())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: at[0])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=at[1]))
    before = snapshot()
    assert changes(before) == []
    at[:] = gpu, stream
    assert [str(c) for c in changes(before)] == [
        f"current GPU and stream ((0, 0) → ({gpu}, {stream}))"
    ]
