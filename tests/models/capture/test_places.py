"""Places that are told, and modules that are awaited."""

import importlib.util
import sys

import pytest

from attnbench.models.capture.child import AfterImport


def test_a_module_is_awaited_and_keeps_its_loader(tmp_path, monkeypatch):
    (tmp_path / "awaited_module.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "awaited_module", raising=False)
    done = []
    deeds = {"awaited_module": lambda: done.append(sys.modules["awaited_module"].x)}
    more = {"sys": lambda: done.append("there"), "no_such": done.clear, "os": lambda: 1 / 0}
    failed = []
    after = AfterImport({**deeds, **more}, failed.append)
    after.begin()
    assert importlib.util.find_spec("awaited_module") is not None  # who only asks uses up nothing
    import awaited_module
    import awaited_module as again

    after.end()
    assert done == ["there", 1] and again is awaited_module
    assert [type(error) for error in failed] == [ZeroDivisionError]
    assert type(awaited_module.__loader__).__name__ == "SourceFileLoader"
    with pytest.raises(ModuleNotFoundError):
        import no_such  # noqa: F401
