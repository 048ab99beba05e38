"""What a function refuses of its operands; how they are standardised, cut into heads, spread over all cores."""

from __future__ import annotations

import math
import re

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import InputError, UnknownName
from workbench.core.operands import check_scale, checked_tensors, map_heads, map_tokens, standardize


@checked_tensors
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


BATCH, HEADS, TOKENS, DIM = 2, 3, 7, 5
SCALE = DIM**-0.5


@pytest.fixture
def k():
    return torch.randn(BATCH, HEADS, TOKENS, DIM, dtype=torch.float64, generator=torch.manual_seed(0))


@pytest.mark.parametrize(("how", "axis"), [("per-token", -1), ("per-feature", -2)])
def test_standardized_keys_have_mean_zero_and_unbiased_deviation_one(k, how, axis):
    x = standardize(k, how, eps=0.0)
    torch.testing.assert_close(x.mean(axis), torch.zeros_like(x.mean(axis)), rtol=0, atol=1e-15)
    torch.testing.assert_close(x.std(axis), torch.ones_like(x.std(axis)), rtol=1e-14, atol=0)
    wide = standardize(k, how, eps=0.5)
    torch.testing.assert_close(wide, x * (k.std(axis) / (k.std(axis) + 0.5)).unsqueeze(axis))
    assert standardize(k, "none") is k


@pytest.mark.parametrize("how", ["per-token", "per-feature"])
def test_standardizing_does_not_look_at_padding(k, how):
    padded = torch.cat([k, torch.full((BATCH, HEADS, 3, DIM), math.nan, dtype=torch.float64)], 2)
    mask = (torch.arange(TOKENS + 3) < TOKENS).expand(BATCH, 1, -1)
    x = standardize(padded, how, mask)
    torch.testing.assert_close(x[..., :TOKENS, :], standardize(k, how), rtol=1e-13, atol=1e-14)
    assert (x[..., TOKENS:, :] == 0).all()


def test_what_does_not_vary_is_standardized_to_zero():
    for how in ("per-token", "per-feature"):
        for eps in (0.0, 1e-8):
            assert torch.equal(
                standardize(torch.full((4, 3), 0.25), how, eps=eps), torch.zeros(4, 3).double()
            )


def test_standardization_that_cannot_be_is_refused(k):
    with pytest.raises(UnknownName, match="did you mean 'per-token'"):
        standardize(k, "per-tokn")
    with pytest.raises(InputError, match="2 features or more"):
        standardize(k[..., :1], "per-token")
    with pytest.raises(InputError, match="NaN or infinite"):
        standardize(k * math.nan, "per-token")


def test_results_come_in_order_and_threads_are_put_back():
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            stack, offsets = torch.arange(7.0)[:, None, None], 10 * torch.arange(7.0)
            inside: list[int] = []

            def add(matrix: torch.Tensor, offset: torch.Tensor, inside: list[int] = inside) -> float:
                inside.append(torch.get_num_threads())
                return float(matrix.sum() + offset)

            assert map_heads(add, stack, offsets) == [11.0 * i for i in range(7)]
            assert set(inside) == {1}
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_an_error_in_one_head_is_raised_and_threads_are_put_back():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        try:
            map_heads(torch.linalg.cholesky, -torch.eye(3).expand(4, 3, 3))
        except torch.linalg.LinAlgError:
            assert torch.get_num_threads() == 2
        else:
            raise AssertionError("a negative matrix has no Cholesky factor")
    finally:
        torch.set_num_threads(before)


def test_lists_and_absent_stacks_reach_every_head():
    stack = torch.arange(3.0)
    assert map_heads(lambda a, b, c: (float(a), b, c), stack, ["x", "y", "z"], None) == [
        (0.0, "x", None),
        (1.0, "y", None),
        (2.0, "z", None),
    ]


def test_heads_are_cut_to_their_real_tokens():
    k, v = torch.randn(2, 3, 7, 5), torch.randn(2, 3, 7, 4)
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])[:, None]
    k[1, :, 4:] = math.nan  # padding may hold anything
    scale = torch.tensor([0.1, 0.2, 0.3])

    def shapes(k: torch.Tensor, v: torch.Tensor, scale: torch.Tensor, seed: int):
        assert k.isfinite().all()
        return tuple(k.shape), tuple(v.shape), k.dtype, round(float(scale), 3), seed

    parts = map_tokens(shapes, {"k": k, "v": v}, scale, mask, range(6))
    assert parts[2] == ((7, 5), (7, 4), torch.float64, 0.3, 2)
    assert parts[4] == ((4, 5), (4, 4), torch.float64, 0.2, 4)
    assert [part[-1] for part in map_tokens(shapes, {"k": v, "v": v}, 1.0)] == [None] * 6


def test_what_does_not_fit_is_named():
    k, v = torch.randn(2, 7, 5), torch.randn(2, 6, 5)
    with pytest.raises(InputError, match=r"v of shape \(2, 6, 5\) does not fit k of shape \(2, 7, 5\)"):
        map_tokens(max, {"k": k, "v": v}, 1.0)
    with pytest.raises(InputError, match=r"k must be a torch tensor .* got list"):
        map_tokens(max, {"k": [[1.0, 2.0]]}, 1.0)
    with pytest.raises(InputError, match="axis token is empty"):
        map_tokens(max, {"k": k[:, :0]}, 1.0)
    with pytest.raises(InputError, match="1 token; at least 2"):
        map_tokens(max, {"k": k[:, :1]}, 1.0)
    with pytest.raises(InputError, match=r"leaves 1 token\(s\)"):
        map_tokens(max, {"k": k}, 1.0, torch.arange(7) < 1)
    with pytest.raises(InputError, match="3 seeds for 2 heads"):
        map_tokens(max, {"k": k}, 1.0, None, [1, 2, 3])
    k[1, 2, 3] = math.inf
    with pytest.raises(InputError, match=r"k of shape .* NaN or infinite"):
        map_tokens(max, {"k": k}, 1.0)


def test_a_scale_is_one_number_or_one_for_each_head_with_or_without_two_more_axes():
    per_head = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    for given in (
        per_head,
        per_head[:, None, None],
        per_head.expand(2, 3),
        per_head.expand(2, 3)[..., None, None],
    ):
        found = check_scale(given, (2, 3), per_head)
        assert torch.equal(found.expand(2, 3, 1, 1)[1, :, 0, 0], per_head)
    assert check_scale(torch.full((1, 1), 0.5), (2, 3), per_head).shape == ()
    for shape in ((5,), (2, 5), (3, 2), (2, 3, 1)):
        with pytest.raises(InputError, match="does not fit the axes"):
            check_scale(torch.ones(shape), (2, 3), per_head)
    for bad in (0.0, -1.0, math.nan, math.inf, torch.tensor([0.1, 0.0, 0.3]), torch.tensor([0.1, -0.2, 0.3])):
        with pytest.raises(InputError, match="finite and positive"):
            check_scale(bad, (2, 3), per_head)
    for bad, named in (
        (0.0, "0.0"),
        (torch.tensor([1.0, -2.0]), "[1.0, -2.0]"),
        (-torch.ones(3, 4), str([-1.0] * 8)),
    ):
        with pytest.raises(InputError, match=re.escape(f"got {named}") + "$"):
            check_scale(bad, (2, 3), per_head)
