"""Coding rates: determinants written out as oracles, and what the theory says of the variational form."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from workbench.analyses.coding_rate import (
    coding_rate,
    coding_rate_compression,
    compression_shares,
    variational_compression,
)
from workbench.core.errors import InputError

BATCH, HEADS, TOKENS, WIDTH, DIM = 2, 3, 7, 11, 4
EPS = 0.8


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


@pytest.fixture
def z():
    return randn(BATCH, TOKENS, WIDTH)


@pytest.fixture
def membership():
    return (2 * randn(BATCH, HEADS, TOKENS, seed=1)).softmax(1)


def half_log_det(tokens, weights, d, eps):
    """½ log det(I + (d/ε²) Σ_j weight_j z_j z_jᵀ), the sum written out."""
    total = np.eye(tokens.shape[1])
    for token, weight in zip(tokens.tolist(), weights, strict=True):
        total = total + d / eps**2 * weight * np.outer(token, token)
    return np.linalg.slogdet(total)[1] / 2


@pytest.mark.parametrize("shape", [(TOKENS, WIDTH), (WIDTH, TOKENS)])  # either Gram side is the smaller one
def test_rates_equal_determinants_written_out(shape):
    z, membership = randn(BATCH, *shape), (2 * randn(BATCH, HEADS, shape[0], seed=1)).softmax(1)
    n, d = shape
    whole, parts = coding_rate(z, EPS), coding_rate_compression(z, membership, EPS)
    for b in range(BATCH):
        assert whole[b].item() == pytest.approx(half_log_det(z[b], [1 / n] * n, d, EPS), rel=1e-12)
        expected = 0.0
        for k in range(HEADS):
            size = membership[b, k].sum().item()
            weights = [pi / size for pi in membership[b, k].tolist()]
            expected += size / n * half_log_det(z[b], weights, d, EPS)
        assert parts[b].item() == pytest.approx(expected, rel=1e-12)


def test_the_variational_form_equals_its_sums(z, membership):
    u = randn(HEADS, WIDTH, DIM, seed=2)
    found = variational_compression(z[:, None] @ u, membership, WIDTH, EPS)
    for b in range(BATCH):
        expected = 0.0
        for k in range(HEADS):
            size = membership[b, k].sum().item()
            for i in range(DIM):
                moment = sum(
                    membership[b, k, j].item() * float(z[b, j] @ u[k, :, i]) ** 2 for j in range(TOKENS)
                )
                expected += size / TOKENS * math.log(1 + WIDTH / EPS**2 * moment / size) / 2
        assert found[b].item() == pytest.approx(expected, rel=1e-12)


def test_without_eps_the_precision_is_one(z, membership):
    u, absorbed = randn(HEADS, WIDTH, DIM, seed=2), math.sqrt(WIDTH)
    torch.testing.assert_close(coding_rate(z), coding_rate(z, absorbed))
    torch.testing.assert_close(
        coding_rate_compression(z, membership), coding_rate_compression(z, membership, absorbed)
    )
    # ε can be absorbed into U: that is what d/ε² = 1 means for trained projections
    w = z[:, None] @ u
    torch.testing.assert_close(
        variational_compression(w, membership, WIDTH, EPS),
        variational_compression(w * absorbed / EPS, membership, WIDTH),
    )


def test_the_rate_reduction_is_never_negative_and_zero_for_one_head(z, membership):
    hard = torch.nn.functional.one_hot(membership.argmax(1), HEADS).mT
    for groups in (membership, hard.double(), torch.full_like(membership, 1 / HEADS)):
        assert (coding_rate(z, EPS) - coding_rate_compression(z, groups, EPS)).min() > -1e-12
    alone = torch.ones(BATCH, 1, TOKENS, dtype=torch.float64)
    torch.testing.assert_close(coding_rate(z, EPS), coding_rate_compression(z, alone, EPS))


def grouped(seed=3):
    """Tokens of three groups, each in a subspace of DIM dimensions, their orthonormal bases, and hard Π."""
    bases = torch.linalg.qr(randn(HEADS, WIDTH, DIM, seed=seed)).Q
    group = torch.tensor([0, 1, 1, 0, 2, 2, 0, 1, 2, 2, 2, 0, 0, 1])
    z = torch.einsum("nwd,nd->nw", bases[group], randn(len(group), DIM, seed=seed + 1))
    return z, bases, torch.nn.functional.one_hot(group, HEADS).T.double()


def test_the_variational_form_bounds_the_compression_where_subspaces_hold_their_tokens():
    z, bases, membership = grouped()
    rate = coding_rate_compression(z, membership, EPS)
    turned = [torch.linalg.qr(randn(HEADS, DIM, DIM, seed=seed)).Q for seed in range(5)]
    for turn in turned:
        bound = variational_compression(z @ (bases @ turn), membership, WIDTH, EPS)
        assert bound > rate + 1e-3  # no turn diagonalises by accident
    # any orthogonal U of full width holds every image, also for soft Π
    full = torch.linalg.qr(randn(HEADS, WIDTH, WIDTH, seed=9)).Q
    soft = randn(HEADS, len(z), seed=10).softmax(0)
    assert variational_compression(z @ full, soft, WIDTH, EPS) > coding_rate_compression(z, soft, EPS)


def test_the_bound_is_reached_where_the_subspaces_diagonalise():
    z, _, membership = grouped()
    weighted = membership[:, :, None].sqrt() * z
    eigenvectors = torch.linalg.eigh(weighted.mT @ weighted).eigenvectors[..., -DIM:]
    tight = variational_compression(z @ eigenvectors, membership, WIDTH, EPS)
    torch.testing.assert_close(tight, coding_rate_compression(z, membership, EPS), rtol=1e-12, atol=0)


def test_bases_that_miss_the_tokens_or_are_not_orthonormal_bound_nothing():
    z, bases, membership = grouped()
    rate = coding_rate_compression(z, membership, EPS)
    assert variational_compression(z @ (0.1 * bases), membership, WIDTH, EPS) < rate
    assert variational_compression(z @ bases[..., :1], membership, WIDTH, EPS) < rate


def test_the_order_of_the_tokens_does_not_matter(z, membership):
    order = torch.randperm(TOKENS, generator=torch.manual_seed(4))
    w = z[:, None] @ randn(HEADS, WIDTH, DIM, seed=2)
    for found, again in (
        (coding_rate(z, EPS), coding_rate(z[:, order], EPS)),
        (
            coding_rate_compression(z, membership, EPS),
            coding_rate_compression(z[:, order], membership[..., order], EPS),
        ),
        (
            variational_compression(w, membership, WIDTH, EPS),
            variational_compression(w[:, :, order], membership[..., order], WIDTH, EPS),
        ),
    ):
        torch.testing.assert_close(found, again, rtol=1e-13, atol=0)


def test_padding_changes_nothing(z, membership):
    u = randn(HEADS, WIDTH, DIM, seed=2)
    mask = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    mask[1, 4:] = False
    padded, held = z.clone(), membership.clone()
    padded[1, 4:], held[1, :, 4:] = math.nan, math.nan
    short, members = z[1:, :4], membership[1:, :, :4]
    pairs = (
        (coding_rate(padded, EPS, mask), coding_rate(short, EPS)),
        (
            coding_rate_compression(padded, held, EPS, mask),
            coding_rate_compression(short, members, EPS),
        ),
        (
            variational_compression(padded[:, None] @ u, held, WIDTH, EPS, mask),
            variational_compression(short[:, None] @ u, members, WIDTH, EPS),
        ),
    )
    for found, alone in pairs:
        torch.testing.assert_close(found[1:], alone, rtol=1e-12, atol=0)


def test_heads_without_tokens_count_nothing(z):
    alone = torch.zeros(BATCH, HEADS, TOKENS, dtype=torch.float64)
    alone[:, 1] = 1
    w = z[:, None] @ randn(HEADS, WIDTH, DIM, seed=2)
    torch.testing.assert_close(coding_rate_compression(z, alone, EPS), coding_rate(z, EPS))
    torch.testing.assert_close(
        variational_compression(w, alone, WIDTH, EPS),
        variational_compression(w[:, 1:2], alone[:, 1:2], WIDTH, EPS),
    )


def test_what_does_not_fit_is_named(z, membership):
    for eps in (0, -1, math.nan, math.inf, 1e-200, 1e200, "1", True):
        with pytest.raises(InputError, match="eps must be a number from 1e-100 to 1e100; got"):
            coding_rate(z, eps)
    with pytest.raises(InputError, match="device 'meta', where tensors have no values"):
        coding_rate(z.to("meta"))
    with pytest.raises(InputError, match=r"membership of shape \(2, 3, 6\) does not fit tokens of shape"):
        coding_rate_compression(z, membership[..., 1:])
    with pytest.raises(InputError, match="missing axis token"):
        coding_rate(z[0, 0])
    with pytest.raises(InputError, match=r"membership of shape .* holds 42 NaN"):
        coding_rate_compression(z, membership * math.nan)
    z[1, 2, 3] = math.inf
    with pytest.raises(InputError, match="first is inf at batch 1, token 2, width 3"):
        coding_rate_compression(z, membership)


def rates(values, model="a", convention="as_published"):
    """A result from {(layer, input): (input, resid_mid, hidden)}."""
    rows = [
        {"model": model, "checkpoint": None, "convention": convention, "layer": layer, "input": name,
         "candidate": site, "value": value, "metric": "coding_rate_variational", "standardize": None}
        for (layer, name), held in values.items()
        for site, value in zip(("input", "resid_mid", "resid_post"), held, strict=True)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_shares_of_layers_by_hand():
    frame = rates({
        (0, "x"): (3, 2, 5), (0, "y"): (3, 4, 5),
        (1, "x"): (3, 1, 4), (1, "y"): (3, 2, 6),
        (2, "x"): (1, 2, 3), (2, "y"): (1, 2, 5),
    })  # fmt: skip
    orthonormal = frame.assign(standardize="orthonormal", value=-(frame["value"] ** 2))
    other = rates({(0, "x"): (2, 1, 0)}, "b", "ours")
    found = compression_shares(pd.concat([frame, orthonormal, other]))
    assert found[["model", "step", "steps", "lowered"]].to_numpy().tolist() == [
        ["a", "attention", 3, 1],  # layer 0 stays on average, layer 2 rises
        ["a", "layer", 2, 1],  # 5 → 5 → 4 on average
        ["b", "attention", 1, 1],
    ]
    assert found["share"].tolist() == pytest.approx([(2 / 3 + 1 / 3) / 2, (1 + 1 / 2) / 2, 1])
    assert (found["low"] <= found["share"]).all()
    assert (found["high"] >= found["share"]).all()
    with pytest.raises(InputError, match="holds no coding rates"):
        compression_shares(orthonormal)
