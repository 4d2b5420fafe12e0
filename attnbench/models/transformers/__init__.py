"""Every core variant in a transformers model, as ``attn_implementation="attnbench:NAME"``.

    import attnbench.models.transformers
    model.set_attn_implementation("attnbench:chunked")

Importing this registers the variants of the table, with their masks; :func:`register` adds one
with options or from a file of rows. A name that holds ``flash`` is spelled with ``FLASH``
(``attnbench:sdpa.FLASH``), because transformers takes every name with ``flash`` in it for one of
its own and goes to look for a kernel. What a variant doesn't serve (a mask, a gradient, a machine)
is refused at the call, by a sentence that names the variant and the layer.

A model whose code has an attention of its own (Bloom, MPT, XGLM) keeps it whatever is set, and
computes what it computes under eager: its masks are eager's. Its first forward pass warns of that
(:class:`NotCalledWarning`). One that takes its attention from a table of classes (Falcon, GPT-J)
is refused at load.
"""

import importlib.util

if importlib.util.find_spec("transformers") is None:
    raise ModuleNotFoundError(
        "attnbench.models.transformers needs transformers: pip install 'attnbench[transformers]'"
    )

from attnbench.answer.choice.paste import spelled
from attnbench.models.transformers.registering import names, register, register_table
from attnbench.models.transformers.setting import NotCalledWarning

__all__ = ["NotCalledWarning", "names", "register", "spelled"]

register_table()
