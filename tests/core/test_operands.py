"""A function that is `checked` refuses what its annotations do not take, and says what arrived."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import InputError
from workbench.core.operands import checked


@checked
def lengths(
    x: Float[Tensor, "*batch token width"],
    scale: float | Float[Tensor, "*batch"] = 1.0,
    bias: Float[Tensor, " token"] | None = None,
    factor: Float[Tensor, "*#batch 1 1"] | None = None,
) -> Float[Tensor, "*batch token"]:
    """Lengths of tokens."""
    return scale * x.norm(dim=-1) + (0 if bias is None else bias)


X = torch.arange(12.0).reshape(2, 3, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_real_floating_numbers_are_taken_in_place_and_by_name(dtype):
    x = X.to(dtype)
    assert torch.equal(lengths(x), lengths(x=x))
    assert torch.equal(lengths(x, bias=torch.zeros(3)), lengths(x, 1.0, None))
    assert torch.equal(lengths(x, factor=torch.tensor(2.0)), lengths(x))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": X.long()}, r"x holds torch\.int64; expected real floating point numbers"),
        ({"x": X + 1j}, r"x holds torch\.complex64"),
        ({"x": X[0, 0]}, r"x has shape \(2,\); expected \(…, token, width\): missing axis token"),
        ({"x": X[:, :0]}, r"axis token is empty"),
        ({"x": X.tolist()}, r"x must be a torch tensor of shape \(…, token, width\); got list"),
        ({"x": X, "bias": torch.zeros(3, dtype=torch.bool)}, r"bias holds torch\.bool"),
        ({"x": X, "factor": torch.tensor(2)}, r"factor holds torch\.int64"),
    ],
)
def test_anything_else_is_refused_by_name_and_axis(given, message):
    with pytest.raises(InputError, match=message):
        lengths(**given)


def test_a_parameter_that_may_be_a_number_is_the_functions_own():
    assert torch.equal(lengths(X, torch.tensor(2)), 2 * lengths(X))
