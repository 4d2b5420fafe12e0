"""NATTEN: each query sees the nearest keys, a window that is pushed inwards at the ends.

    first_n = clamp(n - w // 2, 0, N - w);  query n sees the keys first_n <= m < first_n + w
    causal: query n sees n - w < m <= n
    out_n = softmax over those m of (d^-1/2 q_n . k_m), of v_m

Unlike a sliding window, every query sees exactly w keys (w even: one more to the left), the first
and the last ones too. ``window`` is w; one longer than the sequence means all of it. ``backend``
is forced, where the library would choose by the GPU: cutlass-fna, hopper-fna, blackwell-fna or
flex-fna. All of them need the compiled libnatten but flex-fna. Where the window is the whole
sequence, the library's dense kernel of the same family runs; ``note`` says so, and hopper's and
flex's know no causal mask there. cutlass-fna and hopper-fna repeat grouped keys and values.

``backend`` empty is cutlass-fna on CUDA and flex-fna on a CPU, where nothing else runs: forward
only, uncompiled, with the whole matrix of scores.

arXiv:2204.07143. Cost: 4 N w d FLOPs a head forward; memory linear in N.
"""

import torch
from torch import Tensor

from impls.external.common import find, load, need, need_multiple, swap
from impls.heads import Attend, Define, Noted, to_query_heads
from impls.problem import Problem
from impls.spec import Unavailable

REMEDY = "pip install --no-build-isolation 'natten>=0.21' (compiled with nvcc for your GPU)"
BACKENDS = ("cutlass-fna", "hopper-fna", "blackwell-fna", "flex-fna")


def build(problem: Problem, window: int = 128, backend: str = "") -> Attend:
    """One call of ``na1d``."""
    need(window >= 2, f"natten's window is {window}; it must be 2 or more")
    backend = backend or ("flex-fna" if problem.device == "cpu" else "cutlass-fna")
    need(backend in BACKENDS, f"natten has no backend {backend!r}; it is {', '.join(BACKENDS)}")
    need(problem.q_len >= 2, "natten needs 2 tokens or more, since its least window is 2")
    need(
        backend in ("cutlass-fna", "blackwell-fna") or problem.head_dim == problem.v_head_dim,
        f"natten's {backend} needs v_head_dim equal to head_dim",
    )
    need(
        backend in ("cutlass-fna", "flex-fna") or problem.dtype != "float32",
        f"natten's {backend} takes bfloat16 and float16, not float32",
    )
    need(
        backend != "hopper-fna" or not problem.gradients or problem.head_dim in (32, 64, 128),
        f"natten's hopper-fna has a backward for head_dim 32, 64 and 128, not {problem.head_dim}",
    )
    need(
        backend in ("cutlass-fna", "blackwell-fna")
        or "causal" not in problem.mask.kinds
        or window < problem.q_len,
        f"natten's {backend} has no causal form with a window of all {problem.q_len} keys",
    )
    need_multiple(problem, "natten")
    library = load("natten", "natten", REMEDY)
    if backend != "flex-fna" and not getattr(library, "HAS_LIBNATTEN", True):
        raise Unavailable(f"natten's {backend} needs libnatten; this natten has none", REMEDY)
    function = find(library, "na1d", "natten", REMEDY)
    near, causal = min(window, problem.q_len), "causal" in problem.mask.kinds
    dense = backend.replace("-fna", "-fmha")
    text = f"backend {dense if near == problem.q_len else backend}"
    if problem.device == "cpu":
        text += ", uncompiled: the whole matrix of scores"
    if window > near:
        text += f"; window {window} is all {near} keys"

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        out_bnhe = function(
            swap(q_bhnd), swap(k_bcmd), swap(v_bcme), kernel_size=near, is_causal=causal,
            scale=problem.scale, backend=backend, attention_kwargs={"backend": dense},
        )  # fmt: skip
        return swap(out_bnhe)

    return Noted(attend, text)


def definition(problem: Problem, window: int = 128, backend: str = "") -> Define:
    """Softmax over the clamped window, key by key comparison."""
    n = problem.kv_len
    w = max(1, min(window, n))
    causal = "causal" in problem.mask.kinds

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        key = torch.arange(n, device=rows.device)
        first = rows - w + 1 if causal else (rows - w // 2).clamp(0, n - w)
        past = rows + 1 if causal else first + w
        near = (key >= first[:, None]) & (key < past[:, None])
        k_bhmd, v_bhme = (to_query_heads(x, problem) for x in (k_bcmd, v_bcme))
        scores = q_bhnd[:, :, rows] @ k_bhmd.transpose(-1, -2) * problem.scale
        return scores.masked_fill(~near, -torch.inf).softmax(-1) @ v_bhme

    return define
