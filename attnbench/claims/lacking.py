"""What a claim needs and is not here: said before anything is run, from the machine itself."""

from __future__ import annotations

import re
from dataclasses import replace

import impls
from attnbench.claims.claim import Claim
from attnbench.claims.outcome import Outcome
from attnbench.claims.verdict import Verdict
from attnbench.machine import Machine, why_not


def lacking(claim: Claim, machine: Machine, table: impls.Table,
            embeddings: str | None) -> Outcome | None:  # fmt: skip
    """The outcome of a claim that can't be tried here; None of one that can."""
    needs = claim.needs
    if needs.gpu and not any(re.search(rf"\b{needs.gpu}\b", gpu.name) for gpu in machine.gpus):
        there = ", ".join(dict.fromkeys(gpu.name for gpu in machine.gpus)) or "no NVIDIA GPU"
        return Outcome(
            claim, Verdict.NEEDS_OTHER_HARDWARE,
            f"the figures are of an NVIDIA {needs.gpu}, and this machine has {there}",
            "run it on one",
        )  # fmt: skip
    if needs.gpu and not machine.torch_cuda:
        return _not_run(claim, "the torch installed here has no CUDA", "install a CUDA build of it")
    for name in needs.variants:
        row = table.find(name)
        wanted = replace(row, requires=(*row.requires, *needs.requires))
        if (missing := why_not(wanted, machine)) is not None:
            return _not_run(claim, missing.reason, missing.remedy)
    if needs.embeddings and embeddings is None:
        return _not_run(
            claim, "its figures are of GloVe's word vectors, and no file of them was given",
            f"get glove.6B.50d.txt and run 'attnbench reproduce {claim.name} --embeddings "
            "glove.6B.50d.txt'",
        )  # fmt: skip
    return None


def _not_run(claim: Claim, reason: str, remedy: str) -> Outcome:
    return Outcome(claim, Verdict.NOT_RUN, reason, remedy)
