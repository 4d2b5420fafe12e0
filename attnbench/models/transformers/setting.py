"""What happens when a variant's name is set on a model of transformers, at load or afterwards.

transformers asks each model whether it can have an attention of that name, and answers yes for
every registered one. Here a model whose code couldn't be built with the name is refused by a
sentence, a name with ``sdpa`` in it isn't taken for torch's, and the model is watched for its first
forward pass: where no layer called the variant, a warning says so.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
import warnings
import weakref
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnbench.answer.choice.paste import PREFIX
from attnbench.models.built import NotServed

BETWEEN = (__name__, "torch.", "transformers.")
"""Whose frames lie between a hook and the line that called the model."""


class NotCalledWarning(UserWarning):
    """A variant was set on a model, and none of the model's layers called it."""


class Pass:
    """A forward pass of a watched model that is under way."""

    def __init__(self, model: nn.Module) -> None:
        self.model = weakref.ref(model)
        self.called = False


class UnderWay(threading.local):
    """The passes of this thread, the outermost first."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []


_under_way = UnderWay()
_watched: weakref.WeakKeyDictionary[nn.Module, list[Any]] = weakref.WeakKeyDictionary()
"""The models whose first forward pass is still to come, with the handles of their hooks."""
_transformers_own = PreTrainedModel.get_correct_attn_implementation


def put_into_transformers() -> None:
    """Let every model answer with :func:`answer` when one of our names is set on it."""
    PreTrainedModel.get_correct_attn_implementation = answer  # type: ignore[assignment,method-assign]


def answer(model: Any, requested_attention: str | None, is_init_check: bool = False) -> str | None:
    """What ``model`` will have for its attention; raises :class:`NotServed` where it can't."""
    name = requested_attention
    if name is None or not name.startswith(PREFIX) or name not in ALL_ATTENTION_FUNCTIONS:
        own: str | None = _transformers_own(model, requested_attention, is_init_check)
        return own
    kind: Any = type(model)
    if is_init_check and (found := _chosen_from(kind)) is not None:
        layer, table = found
        raise NotServed(
            f"{kind.__name__} can't be loaded with {name}: {layer} takes its attention from "
            f"{table}, a table of transformers' own classes, and calls no other; load it with "
            "attn_implementation='eager'"
        )
    _watch(model)
    return name


@cache
def _chosen_from(model: type[nn.Module]) -> tuple[str, str] | None:
    """The class within a model that looks its attention up in a table of classes, and the table.

    None where no class that the model's code names, directly or through others, does so.
    """
    module = vars(sys.modules.get(model.__module__, object))
    tables = {name for name, value in module.items() if _is_table(value)}
    todo, seen = [model] if tables else [], {base.__name__ for base in model.__mro__}
    while todo:
        one = todo.pop()
        try:
            words = set(re.findall(r"\w+", inspect.getsource(one)))
        except (OSError, TypeError):
            continue
        if found := tables & words:
            return one.__name__, min(found)
        new = {w for w in words - seen if _is_layer(module.get(w), model.__module__)}
        seen |= new
        todo += [module[w] for w in new]
    return None


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and "eager" in value and isinstance(value["eager"], type)


def _is_layer(value: Any, module: str) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module


def called() -> None:
    """Note that a layer called a variant, in whatever passes are under way."""
    for one in _under_way.passes:
        one.called = True


def _watch(model: nn.Module) -> None:
    if model not in _watched:
        _watched[model] = [
            model.register_forward_pre_hook(_begin),
            model.register_forward_hook(_end, always_call=True),
        ]


@torch.compiler.disable
def _begin(model: nn.Module, args: Any) -> None:
    if model in _watched:
        _under_way.passes.append(Pass(model))


@torch.compiler.disable
def _end(model: nn.Module, args: Any, output: Any) -> None:
    passes = _under_way.passes
    if not passes or passes[-1].model() is not model:
        return
    done = passes.pop()
    if output is None or (handles := _watched.pop(model, None)) is None:
        return  # it raised, or another thread's pass was the first
    for handle in handles:
        handle.remove()
    config: Any = model.config
    name = config._attn_implementation
    if done.called or not str(name).startswith(PREFIX) or _told_by_the_model_around(model):
        return
    warnings.warn(
        f"{name} is set on {type(model).__name__}, and none of its layers called it in this "
        "forward pass: what attention there is, it computes by code of its own, as under "
        "attn_implementation='eager'",
        NotCalledWarning,
        _levels_to_the_caller(),
    )


def _levels_to_the_caller() -> int:
    """How far up the line stands that called the model, for ``warnings.warn`` in a hook."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(BETWEEN):
        level, frame = level + 1, frame.f_back
    return level


def _told_by_the_model_around(model: Any) -> bool:
    """Whether a model around this one says it, or other parts of it may call the variant."""
    if not _under_way.passes:
        return False
    around: Any = _under_way.passes[0].model()
    return model.config is around.config or model._can_set_attn_implementation()
