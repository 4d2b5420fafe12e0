"""``attention(name)``: a variant of the table, or of a file of rows, as a function."""

import torch
import torch.nn.functional as F

from attnbench.models.attention import attention

ROW = """
from impls.spec import Variant
ROWS = [Variant(name="first_value", title="the first value", family="mine",
                computes="its own operator", build=__file__ + ":build",
                definition=__file__ + ":build", options={"times": 1})]
def build(problem, times):
    return lambda q, k, v: v[:, :, :1].expand(*q.shape[:3], -1) * times
"""


def test_rows_of_your_own_come_from_their_file(tmp_path):
    (tmp_path / "rows.py").write_text(ROW)
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in "qkv")
    out = attention("first_value?times=3", [tmp_path / "rows.py"])(q, k, v)
    torch.testing.assert_close(out, (3 * v[:, :, :1]).expand_as(q))


BUFFERED = """
import torch
from impls.dense.matmul import build as plain
from impls.spec import Variant
ROWS = [Variant(name="buffered", title="one place for every output", family="mine",
                computes="softmax", build=__file__ + ":build", reuses_output=True)]
def build(problem):
    inner, place = plain(problem), torch.empty(problem.output_shape)
    return lambda q, k, v: place.copy_(inner(q, k, v))
"""


def test_an_output_that_the_row_would_overwrite_is_the_callers(tmp_path):
    (tmp_path / "rows.py").write_text(BUFFERED)
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in "qkv")
    tokens_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    attend = attention("buffered", [tmp_path / "rows.py"])
    for given in ([q, k, v], tokens_first):
        first = attend(*given)
        attend(q + 1, k, 2 * v)
        torch.testing.assert_close(first, F.scaled_dot_product_attention(q, k, v))
