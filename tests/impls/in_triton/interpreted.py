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
    from triton.runtime import interpreter

    if not hasattr(interpreter._patch_lang_tensor, "__wrapped__"):
        interpreter._patch_lang_tensor = _counting(interpreter._patch_lang_tensor)
        builder = interpreter.InterpreterBuilder
        builder.create_dot = _widening(builder.create_dot)
        builder.cast_impl = _rounding(builder.cast_impl)
        if not hasattr(builder, "create_descriptor_reduce"):
            builder.create_descriptor_reduce = _adding


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
    """To bfloat16 as a GPU does it: the interpreter cuts numbers off, which doubles the error."""
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    @wraps(cast_impl)
    def cast(self, x, dtype):
        if (x.dtype.scalar, dtype.scalar) != (tl.float32, tl.bfloat16):
            return cast_impl(self, x, dtype)
        rounded = torch.from_numpy(np.ascontiguousarray(x.data, np.float32)).bfloat16()
        return TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)

    return cast
