"""Two folders with modules of the same names in one process."""

import importlib
import sys

import pytest

from attnbench.meter.pairs import ModuleSwap, Sides

NAME = "beside_planted"
LAZY = "def later():\n    from beside_planted import late\n    return late.WHO\n"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two folders that say who they are; the first is where this process looks."""
    for who in "ab":
        package = tmp_path / who / NAME
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"WHO = {who!r}\n{LAZY}")
        (package / "late.py").write_text(f"WHO = {who!r}\n")
    (tmp_path / "b" / "attnbench").symlink_to("nowhere")
    monkeypatch.syspath_prepend(str(tmp_path / "a"))
    importlib.invalidate_caches()
    yield str(tmp_path / "a"), str(tmp_path / "b")
    for name in [name for name in sys.modules if name.split(".")[0] == NAME]:
        del sys.modules[name]


def package():
    return importlib.import_module(NAME)


def test_inside_the_second_folder_is_there_and_outside_the_first_with_its_very_modules(folders):
    first, beside = package(), ModuleSwap(folders[1], folders[0])
    with beside.there():
        second = package()
        assert (second.WHO, sys.modules[NAME]) == ("b", second)
    assert package() is first
    with beside.there():
        assert package() is second  # not loaded again
    assert (first.WHO, folders[0] in sys.path, folders[1] in sys.path) == ("a", True, False)


def test_what_is_imported_at_a_call_comes_from_the_folder_at_work(folders):
    first, beside = package(), ModuleSwap(folders[1], folders[0])
    assert first.later() == "a"  # loaded now, and to be gone inside
    with beside.there():
        assert package().later() == "b"
    assert first.later() == "a"
    assert sys.modules[f"{NAME}.late"].WHO == "a"


def test_a_row_files_folder_is_looked_in_where_the_second_has_it(folders):
    sys.path.append(folders[0] + "/kernels")
    try:
        with ModuleSwap(folders[1], folders[0]).there():
            assert folders[1] + "/kernels" in sys.path
        assert folders[0] + "/kernels" in sys.path
    finally:
        sys.path.remove(folders[0] + "/kernels")


def test_what_fails_inside_leaves_the_first_as_it_was(folders):
    first = package()
    with pytest.raises(ZeroDivisionError), ModuleSwap(folders[1], folders[0]).there():
        package()
        1 / 0  # noqa: B018
    assert package() is first


def test_torch_the_ruler_and_the_rest_stay(folders):
    before = {name: sys.modules[name] for name in ("torch", "attnbench", "attnbench.meter.pairs")}
    with ModuleSwap(folders[1], folders[0]).there():
        assert {name: sys.modules[name] for name in before} == before


def test_what_lies_in_the_first_folder_goes_whatever_it_is_and_nothing_else(folders, monkeypatch):
    """A package without a file of its own goes too; the ruler, linked there, stays."""
    from types import ModuleType

    places = {"beside_bare": None, "attnbench.beside": "/attnbench/beside.py", "beside_like": "b/x"}
    for name, place in places.items():
        module = ModuleType(name)
        if place is None:
            module.__path__ = [folders[0] + "/bare"]
        else:
            module.__file__ = folders[0] + place
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "beside_none", None)  # "there is no such module"
    with ModuleSwap(folders[1], folders[0]).there():
        assert {name for name in places if name in sys.modules} == {*places} - {"beside_bare"}
    assert {*places} <= set(sys.modules)


def test_each_side_is_asked_with_its_own_modules_there(folders):
    """A side that has answered keeps its variant while the other is asked."""
    asked = []

    class Says:
        def answer(self, bench, question):
            asked.append((self, package().WHO, question))
            return {"held": True}

    sides = Sides(folders[0], Says)
    for question in (
        {"hold": 1},
        {"hold": 2, "beside": folders[1]},
        {"sample": 1},
        {"sample": 1, "beside": folders[1]},
    ):
        assert sides.answer(None, question) == {"held": True}
    assert [who for _, who, _ in asked] == ["a", "b", "a", "b"]
    own, other = asked[0][0], asked[1][0]
    assert [side for side, _, _ in asked] == [own, other, own, other]
    assert own is not other
