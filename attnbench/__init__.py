"""attnbench tells an engineer which attention to use, and proves it. This package is the ruler.

What a notebook or a model calls is loaded when it is first asked for::

    attnbench.run(["sdpa", "matmul"], seq=[256, 512])     measure: a DataFrame
    attnbench.load("results")                             what was measured, as a DataFrame
    attnbench.show(df)                                    the report's summary, inline
    attnbench.choose(4096, phase="forward")               which to use, and what proves it
    attnbench.attention("chunked?block=64")               a variant as a function
    attnbench.dispatch("table.json")                      the fastest for each call, as a function
    attnbench.capture()                                   a program's attention calls
"""

__version__ = "0.1.0"

LATER = {
    "NotServed": "attnbench.models.attention:NotServed",
    "attention": "attnbench.models.attention:attention",
    "capture": "attnbench.models.capture.capture:capture",
    "choose": "attnbench.notebook.verbs:choose",
    "dispatch": "attnbench.models.dispatch:dispatch",
    "load": "attnbench.notebook.frames:load",
    "run": "attnbench.notebook.verbs:run",
    "show": "attnbench.notebook.display:show",
}
"""Names of this package and where each is from; ``__init__.pyi`` says the same to editors."""


def __getattr__(name: str) -> object:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, _, function = LATER[name].partition(":")
    found: object = getattr(import_module(module), function)
    globals()[name] = found  # the next time it is simply there
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *LATER})
