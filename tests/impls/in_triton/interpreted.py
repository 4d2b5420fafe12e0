"""Triton's interpreter, and what these tests share."""

import os
from functools import wraps

import pytest

ON = os.environ.get("TRITON_INTERPRET") == "1"
WHY = (
    "the interpreter must be asked for before triton is imported, by whatever imports it first: "
    "TRITON_INTERPRET=1 python -m pytest tests/impls/in_triton"
)


def start():
    """Triton, interpreting; the test is skipped where it can't be."""
    if not ON:
        pytest.skip(WHY, allow_module_level=True)
    if "CI" not in os.environ:
        pytest.importorskip("triton", reason="triton is not installed: the extra 'triton' has it")
    import triton.language as tl
    from triton.runtime import interpreter

    if not hasattr(interpreter._patch_lang_tensor, "__wrapped__"):
        interpreter._patch_lang_tensor = _counting(interpreter._patch_lang_tensor)
        builder = interpreter.InterpreterBuilder
        builder.create_dot = _widening(builder.create_dot)
        builder.cast_impl = _rounding(builder.cast_impl)
        if not hasattr(builder, "create_descriptor_reduce"):
            builder.create_descriptor_reduce = _adding
        rounding = builder.create_fp_to_fp
        builder.create_fp_to_fp = lambda self, x, dtype, mode: (
            builder.cast_impl(self, x, dtype)
            if (x.dtype.scalar, dtype.scalar) == (tl.float32, tl.float8e4nv)
            else rounding(self, x, dtype, mode)
        )


def _counting(patch):
    """A loop's ends are arrays of one number, which NumPy 2.4 no longer takes for a number."""

    @wraps(patch)
    def patched(tensor, scope, *more):
        patch(tensor, scope, *more)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(()).item()))

    return patched


def _widening(create_dot):
    """NumPy has no bfloat16: Triton 3.6 holds its bits as integers, and multiplies those. Nor has
    it TF32: the tensor cores cut a float32 off to its digits.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def cut(x):
        if x.data.dtype != np.float32:
            return x
        return TensorHandle((x.data.view(np.uint32) & 0xFFFFE000).view(np.float32), x.dtype)

    def widened(x):
        if x.dtype.scalar != tl.bfloat16 or x.data.dtype != np.uint16:
            return x
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    @wraps(create_dot)
    def dot(self, a, b, d, input_precision, *more):
        a, b = widened(a), widened(b)
        if str(input_precision).upper().endswith("TF32"):
            a, b = cut(a), cut(b)
        return create_dot(self, a, b, d, input_precision, *more)

    return dot


def _adding(self, kind, descriptor, value, indices):
    """A descriptor's atomic_add, which the interpreter lacks; its programs come one by one."""
    places, inside = descriptor.materialize_pointers(indices)
    there = self.create_descriptor_load(descriptor, indices, None)
    added = self.create_fadd(there, value)
    return self.create_masked_store(places, added, inside, None)


def _rounding(cast_impl):
    """To bfloat16 and e4m3 as a GPU does it: the interpreter cuts numbers off, which doubles the
    error. An integer it takes for the bits of a bfloat16.
    """
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    @wraps(cast_impl)
    def cast(self, x, dtype):
        to = dtype.scalar
        if x.dtype.scalar == tl.float8e4nv:
            wide = torch.from_numpy(np.ascontiguousarray(x.data)).view(torch.float8_e4m3fn)
            x = TensorHandle(wide.float().numpy(), tl.float32)
        elif x.dtype.scalar == tl.int8 and to == tl.bfloat16:
            x = TensorHandle(x.data.astype(np.float32), tl.float32)
        if x.dtype.scalar == tl.float32 and to == tl.float32:
            return x
        if x.dtype.scalar != tl.float32 or to not in (tl.bfloat16, tl.float8e4nv):
            return cast_impl(self, x, dtype)
        values = torch.from_numpy(np.ascontiguousarray(x.data, np.float32))
        if to == tl.float8e4nv:
            bits = values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        else:
            bits = values.bfloat16().view(torch.int16).numpy().view(np.uint16)
        return TensorHandle(bits, to)

    return cast
