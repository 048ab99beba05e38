import itertools
import math

import pandas as pd
import pytest
import torch

from workbench.analyses import projection_error
from workbench.analyses.kernel_pca import kpca_values, principal_axes
from workbench.analyses.null_values import null_values
from workbench.analyses.projection_error import (
    CONVENTIONS,
    NORM_STATISTICS,
    assigned_range,
    cross_term,
    cross_term_range,
    least_assigned,
    log_feature_norms,
    projection_errors,
    projections,
)
from workbench.analyses.tiles import Mask
from workbench.core.errors import InputError, UnknownName

BATCH, HEADS, TOKENS, DIM, VALUE_DIM = 2, 3, 7, 5, 4
SCALE = 0.6


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


@pytest.fixture
def qkv():
    shape = (BATCH, HEADS, TOKENS)
    return normal(*shape, DIM), normal(*shape, DIM, seed=1), 0.3 * normal(*shape, VALUE_DIM, seed=2)


def close(found, expected, rtol=1e-10):
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64), rtol=rtol, atol=0)


def kernel(x, y, k):
    """k_φ(x, y) = exp(s x·y) / (g(x) g(y)) from the definition."""
    g_x, g_y = (sum(math.exp(SCALE * float(one @ key)) for key in k) for one in (x, y))
    return math.exp(SCALE * float(x @ y)) / (g_x * g_y)


def softmax_output(q, k, v, scale=SCALE):
    weights = torch.tensor([[math.exp(scale * float(a @ b)) for b in k] for a in q], dtype=torch.float64)
    return weights / weights.sum(-1, keepdim=True) @ v


def naive_axes(k, count):
    """Top eigenvectors and eigenvalues of C K_φ C."""
    gram = torch.tensor([[kernel(a, b, k) for b in k] for a in k], dtype=torch.float64)
    centring = torch.eye(len(k), dtype=torch.float64) - 1 / len(k)
    eigenvalues, vectors = torch.linalg.eigh(centring @ gram @ centring)
    return vectors.flip(1)[:, :count], eigenvalues.flip(0)[:count]


def naive_projections(q, k, vectors):
    """P_id = Σ_j [k_φ(q_i, k_j) − mean_j' k_φ(q_i, k_j')] a_dj."""
    values = torch.tensor([[kernel(a, b, k) for b in k] for a in q], dtype=torch.float64)
    return (values - values.mean(-1, keepdim=True)) @ vectors


def signed_assignments(columns, axes):
    """Every way to give some columns to some axes, as many as there are of the fewer, with signs."""
    pairs = min(columns, axes)
    for chosen in itertools.permutations(range(columns), pairs):
        for own in itertools.combinations(range(axes), pairs):
            for signs in itertools.product((1, -1), repeat=pairs):
                yield list(zip(own, chosen, signs, strict=True))


def loss_of(assignment, h, projected, gram_of_axes, phi):
    """mean_i ‖φ(q_i) − Σ_d σ_d h_iπ(d) u_d‖², with every inner product written out."""
    h, projected, gram_of_axes, phi = (part.tolist() for part in (h, projected, gram_of_axes, phi))
    total = 0.0
    for i in range(len(h)):
        total += phi[i]
        for d, m, sign in assignment:
            total -= 2 * sign * h[i][m] * projected[i][d]
            for other, n, other_sign in assignment:
                total += sign * other_sign * h[i][m] * h[i][n] * gram_of_axes[d][other]
    return total / len(h)


def test_feature_norms_are_the_kernel_of_a_query_with_itself(qkv):
    q, k, _ = qkv
    expected = [[[kernel(a, a, k[b, h]) for a in q[b, h]] for h in range(HEADS)] for b in range(BATCH)]
    close(log_feature_norms(q, k, SCALE).exp(), expected)


@pytest.mark.parametrize("factor", [1.0, 0.01, 4.0])
def test_attention_with_kernel_pca_values_is_the_projection(qkv, factor):
    q, k = factor * qkv[0][0, 1], factor * qkv[1][0, 1]
    axes = principal_axes(k, SCALE, VALUE_DIM)
    expected = naive_projections(q, k, axes.vectors)
    found = projections(q, k, SCALE, axes)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    output = softmax_output(q, k, kpca_values(axes).product())
    torch.testing.assert_close(output, found, rtol=0, atol=1e-12)
    if factor == 1:
        assert found.abs().amax() > 1e-3


@pytest.mark.parametrize(("value_dim", "tokens"), [(1, 7), (2, 7), (3, 7), (4, 7), (4, 4), (4, 3)])
def test_exact_error_is_the_least_over_all_signed_assignments(value_dim, tokens):
    q, k = normal(6, DIM, seed=3), normal(tokens, DIM, seed=4)
    v = 0.4 * normal(tokens, value_dim, seed=5)
    count = min(value_dim, tokens - 1)
    vectors, eigenvalues = naive_axes(k, count)
    projected = naive_projections(q, k, vectors)
    phi = torch.tensor([kernel(a, a, k) for a in q], dtype=torch.float64)
    h = softmax_output(q, k, v)
    losses = [
        loss_of(assignment, h, projected, torch.diag(eigenvalues), phi)
        for assignment in signed_assignments(value_dim, count)
    ]
    found = projection_errors(q, k, v, SCALE, conventions=["exact"])
    close(found.errors["exact"], min(losses))
    assert int(found.axes) == count
    if value_dim > 1:
        assert min(losses) < max(losses)


def test_exact_error_never_exceeds_a_random_assignment():
    q, k = normal(11, 6, seed=6), normal(23, 6, seed=7)
    found = projection_errors(q, k, 0.3 * normal(23, 9, seed=8), SCALE)
    vectors, eigenvalues = naive_axes(k, 9)
    projected = naive_projections(q, k, vectors)
    h = softmax_output(q, k, 0.3 * normal(23, 9, seed=8))
    phi = log_feature_norms(q, k, SCALE).exp()
    generator = torch.Generator().manual_seed(9)
    for _ in range(300):
        order = torch.randperm(9, generator=generator)
        signs = torch.randint(0, 2, (9,), generator=generator) * 2.0 - 1
        given = signs * h[:, order]
        loss = (phi - 2 * (given * projected).sum(-1) + (given**2 * eigenvalues).sum(-1)).mean()
        assert found.errors["exact"] <= loss + 1e-15


def test_the_floor_is_the_loss_of_the_true_projections(qkv):
    q, k, v = (part[1, 2] for part in qkv)
    vectors, eigenvalues = naive_axes(k, VALUE_DIM)
    projected = naive_projections(q, k, vectors)
    phi = torch.tensor([kernel(a, a, k) for a in q], dtype=torch.float64)
    identity = [(d, d, 1) for d in range(VALUE_DIM)]
    expected = loss_of(identity, projected / eigenvalues, projected, torch.diag(eigenvalues), phi)
    found = projection_errors(q, k, v, SCALE)
    close(found.floor, expected)
    close(found.baseline, phi.mean())
    # outputs that are those projections reach it, in any order and with any sign
    given = (projected / eigenvalues)[:, [2, 0, 3, 1]] * torch.tensor([1, -1, -1, 1])
    close(projection_errors(q, k, v, SCALE, output=given).errors["exact"], expected)


def test_floor_below_error_and_error_of_nothing_is_the_baseline(qkv):
    q, k, v = qkv
    for factor in (1e-3, 1.0, 5.0):
        found = projection_errors(q, k, factor * v, SCALE, null_samples=4)
        assert (found.floor <= found.errors["exact"]).all()
        assert (found.floor < found.baseline).all()
        assert (found.floor > 0).all()
        for null_samples in found.null_samples.values():
            assert (found.floor[..., None] <= null_samples).all()
    nothing = projection_errors(q, k, 0 * v, SCALE)
    close(nothing.errors["exact"], nothing.baseline)
    # outputs of large norm do worse than none
    large = projection_errors(q, k, 100 * v, SCALE)
    assert (large.errors["exact"] > large.baseline).all()


def test_published_conventions_and_norms(qkv):
    q, k, v = qkv
    found = projection_errors(q, k, v, SCALE)
    assert found.errors.keys() == set(CONVENTIONS)
    for place in itertools.product(range(BATCH), range(HEADS)):
        phi = torch.tensor([kernel(a, a, k[place]) for a in q[place]], dtype=torch.float64)
        h = softmax_output(q[place], k[place], v[place]).square().sum(-1)
        gaps = (phi - h).abs()
        close(found.errors["teo2024_as_published"][place], (phi - h).mean(), rtol=1e-9)
        close(found.errors["saritas2025"][place], gaps.mean())
        close(found.error_over_phi[place], (gaps / (phi + 1e-8)).mean())
        close(found.error_over_h[place], (gaps / (h + 1e-8)).mean())
        for norms, statistics in ((phi, found.phi_norm2[place]), (h, found.h_norm2[place])):
            expected = {"mean": norms.mean(), "median": norms.median()}  # 7 tokens: one in the middle
            for name, share in (("q2.5", 0.025), ("q25", 0.25), ("q75", 0.75), ("q97.5", 0.975)):
                expected[name] = norms.quantile(share)
            close(statistics, [float(expected[name]) for name in NORM_STATISTICS])


def test_the_code_of_teo2024_leaves_the_scale_out_in_two_places(qkv):
    q, k, v = qkv
    found = projection_errors(q, k, v, SCALE, conventions=["teo2024_as_implemented"]).errors[
        "teo2024_as_implemented"
    ]
    seen = set()
    for place in itertools.product(range(BATCH), range(HEADS)):
        queries, keys = (
            (x[place] - x[place].mean(-1, keepdim=True)) / x[place].std(-1, keepdim=True) for x in (q, k)
        )
        phi = []
        for query in queries:
            g = sum(math.exp(SCALE * float(query @ key)) for key in keys)
            extra = 2 * (1 - SCALE) * float(query @ keys[0])
            phi.append(math.exp(float(query @ query) - extra) / g**2)
        h = softmax_output(queries, keys, v[place]).square().sum(-1)
        mean = float((torch.tensor(phi, dtype=torch.float64) - h).mean())
        seen.add(mean > 0)
        if mean > 0:
            close(found[place], math.log(mean), rtol=1e-9)
        else:
            assert found[place].isnan()
    large = projection_errors(q, k, 1e3 * v, SCALE, conventions=["teo2024_as_implemented"])
    assert large.errors["teo2024_as_implemented"].isnan().all()
    assert True in seen


def test_standardised_queries_and_keys_are_used_for_everything(qkv):
    q, k, v = qkv
    q_hat, k_hat = ((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True) for x in (q, k))
    wrong = torch.full_like(q[..., :VALUE_DIM], 9.0)  # the output of the model as it is does not apply
    found = projection_errors(q, k, v, SCALE, output=wrong, standardize="per-token", null_samples=3)
    same(found, projection_errors(q_hat, k_hat, v, SCALE, null_samples=3))
    # what the code does is the same either way
    close(
        found.errors["teo2024_as_implemented"],
        projection_errors(q, k, v, SCALE).errors["teo2024_as_implemented"],
    )


def same(found, expected, rtol=1e-10):
    for name, one, two in zip(found._fields, found, expected, strict=True):
        for key in one if isinstance(one, dict) else [None]:
            first, second = (one, two) if key is None else (one[key], two[key])
            torch.testing.assert_close(
                first,
                second,
                rtol=rtol,
                atol=1e-14,
                equal_nan=True,
                msg=lambda text, name=name: f"{name}: {text}",
            )


def test_tokens_of_equal_features_standardise_to_zero(qkv):
    q, k, v = qkv
    q = q.clone()
    q[..., 2, :] = 0.7
    zeroed = ((q - q.mean(-1, keepdim=True)) / q.std(-1, keepdim=True)).clone()
    zeroed[..., 2, :] = 0
    k_hat = (k - k.mean(-1, keepdim=True)) / k.std(-1, keepdim=True)
    found = projection_errors(q, k, v, SCALE, standardize="per-token", conventions=CONVENTIONS[2:])
    same(found, projection_errors(zeroed, k_hat, v, SCALE, conventions=CONVENTIONS[2:]))


def test_a_mask_gives_what_the_real_tokens_alone_give(qkv):
    q, k, v = (part.clone() for part in qkv)
    mask = torch.ones(BATCH, 1, TOKENS, dtype=torch.bool)
    mask[1, 0, [0, 5]] = False
    real = [1, 2, 3, 4, 6]
    bias = normal(1, HEADS, TOKENS, TOKENS, seed=10)
    bias[..., 2, 4] = -math.inf
    output = normal(BATCH, HEADS, TOKENS, VALUE_DIM, seed=11)
    seeds = [*range(20, 20 + BATCH * HEADS)]
    for given in (None, output):
        alone = projection_errors(
            *(part[1][:, real] for part in (q, k, v)),
            SCALE,
            attention_mask=bias[0][:, real][:, :, real],
            output=None if given is None else given[1][:, real],
            null_samples=3,
            seeds=seeds[HEADS:],
        )
        for part in (q, k, v):
            part[1, :, [0, 5]] = math.nan
        masked = projection_errors(
            q, k, v, SCALE, mask, attention_mask=bias, output=given, null_samples=3, seeds=seeds
        )
        for part, whole in zip((q, k, v), qkv, strict=True):
            part.copy_(whole)
        second = [
            {n: x[1] for n, x in part.items()} if isinstance(part, dict) else part[1] for part in masked
        ]
        same(type(masked)(*second), alone)


def test_attention_masks_shape_the_output_and_not_the_kernel(qkv):
    q, k, v = qkv
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    scores = (SCALE * q @ k.mT).masked_fill(~causal, -math.inf)
    expected = projection_errors(q, k, v, SCALE, output=scores.softmax(-1) @ v, conventions=CONVENTIONS[2:])
    for mask in (causal, torch.zeros(TOKENS, TOKENS).masked_fill(~causal, -math.inf)):
        found = projection_errors(q, k, v, SCALE, attention_mask=mask, conventions=CONVENTIONS[2:])
        same(found, expected)
    free = projection_errors(q, k, v, SCALE)
    assert torch.equal(found.phi_norm2, free.phi_norm2)
    assert not torch.allclose(found.errors["exact"], free.errors["exact"])


def test_a_query_that_may_attend_to_nothing_has_no_output(qkv):
    q, k, v = qkv
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    mask[3] = False
    output = (SCALE * q @ k.mT).softmax(-1) @ v
    output[..., 3, :] = 0
    found = projection_errors(q, k, v, SCALE, attention_mask=mask, conventions=CONVENTIONS[2:])
    same(found, projection_errors(q, k, v, SCALE, output=output, conventions=CONVENTIONS[2:]))


def test_fewer_queries_than_keys(qkv):
    q, k, v = qkv
    mask = torch.ones(BATCH, 1, TOKENS, dtype=torch.bool)
    mask[0, 0, 6] = False
    found = projection_errors(q[..., :2, :], k, v, SCALE, mask)
    alone = projection_errors(q[:1, :, :2], k[:1, :, :6], v[:1, :, :6], SCALE)
    close(found.errors["exact"][0], alone.errors["exact"][0])
    close(found.h_norm2[0], alone.h_norm2[0])


def test_draws_are_the_exact_errors_of_null_values(qkv):
    q, k, v = qkv
    seeds = [5, 3, 8, 13, 21, 34]
    found = projection_errors(q, k, v, SCALE, null_samples=3, seeds=seeds)
    for null in ("gaussian", "permutation"):
        drawn = null_values(v[1, 1], null, 3, seeds[4])
        expected = [projection_errors(q[1, 1], k[1, 1], one, SCALE).errors["exact"] for one in drawn]
        close(found.null_samples[null][1, 1], torch.stack(expected))
    assert not projection_errors(q, k, v, SCALE).null_samples


def test_equal_keys_have_norms_but_no_axes(qkv):
    q, _, v = qkv
    k = torch.full((BATCH, HEADS, TOKENS, DIM), 0.3)
    found = projection_errors(q, k, v, SCALE, null_samples=2)
    assert (found.resolved == 0).all()
    assert found.errors["exact"].isnan().all()
    assert found.floor.isnan().all()
    assert found.null_samples["gaussian"].isnan().all()
    assert found.errors["saritas2025"].isfinite().all()
    assert found.phi_norm2.isfinite().all()


@pytest.mark.parametrize("factor", [1e-3, 10.0, 60.0])
def test_queries_and_keys_of_any_size_have_no_nan(qkv, factor):
    q, k, v = qkv
    found = projection_errors(factor * q, factor * k, v, SCALE, null_samples=2)
    for name in ("teo2024_as_published", "saritas2025", "exact"):
        assert not found.errors[name].isnan().any()
    assert not found.floor.isnan().any()
    assert not found.phi_norm2.isnan().any()
    assert (found.floor <= found.errors["exact"]).all()
    assert (found.errors["exact"] <= found.baseline + 1e3).all()


def test_only_what_is_asked_for_is_computed(qkv):
    found = projection_errors(*qkv, SCALE, conventions=["saritas2025"], null_samples=3)
    assert found.errors.keys() == {"saritas2025"}
    assert found.floor.isnan().all()
    assert not found.null_samples
    assert torch.equal(found.resolved, found.axes)


def test_one_scale_per_head(qkv):
    q, k, v = qkv
    scales = torch.tensor([0.2, 0.5, 1.1])
    found = projection_errors(q, k, v, scales)
    for head in range(HEADS):
        alone = projection_errors(q[:, head], k[:, head], v[:, head], float(scales[head]))
        close(found.errors["exact"][:, head], alone.errors["exact"])


def test_assignment_leaves_columns_without_an_axis_out():
    h = torch.tensor([[3.0, 1.0], [3.0, -1.0]], dtype=torch.float64)
    projected = torch.tensor([[0.5], [-0.5]], dtype=torch.float64)
    # the second column: −2·0.5 + 1·1 = 0; the first: 0 + 9
    assert float(least_assigned(h, projected, torch.ones(1, dtype=torch.float64))) == 0.0


def test_what_does_not_fit_is_refused(qkv):
    q, k, v = qkv
    with pytest.raises(UnknownName, match="saritas2025"):
        projection_errors(q, k, v, SCALE, conventions=["saritas"])
    with pytest.raises(UnknownName, match="per-token"):
        projection_errors(q, k, v, SCALE, standardize="per-feature")
    with pytest.raises(InputError, match="one copy per query head"):
        projection_errors(q, k[:, :1], v[:, :1], SCALE)
    with pytest.raises(InputError, match="v of shape"):
        projection_errors(q, k, v[:, :, :5], SCALE)
    with pytest.raises(InputError, match="output of shape"):
        projection_errors(q, k, v, SCALE, output=v[:, :, :5])
    with pytest.raises(InputError, match="attention_mask"):
        projection_errors(q, k, v, SCALE, attention_mask=torch.ones(3, 4, dtype=torch.bool))
    with pytest.raises(InputError, match="give tiled=True"):
        projection_errors(q, k, v, SCALE, attention_mask=Mask(causal=True))
    with pytest.raises(InputError, match="seeds"):
        projection_errors(q, k, v, SCALE, seeds=[1])
    with pytest.raises(InputError, match="token"):
        projection_errors(q, k[:, :, :1], v[:, :, :1], SCALE)
    with pytest.raises(InputError, match="leaves 1 token"):
        projection_errors(q, k, v, SCALE, torch.arange(TOKENS) < 1)
    q[1, 0, 2, 3] = math.inf
    with pytest.raises(InputError, match=r"q of shape .* holds 1 NaN or infinite"):
        projection_errors(q, k, v, SCALE)


def test_the_cross_term_of_saritas2025_a1_is_the_square_of_a_sum():
    h, axes = normal(BATCH, 3, seed=5), normal(5, 3, seed=6)
    found = cross_term(h, axes)
    for place, output in enumerate(h):
        products = [
            float(axes[:, m] @ axes[:, n] * output[m] * output[n]) for m in range(3) for n in range(3)
        ]
        close(found[place], sum(products))
    toy, assignments = torch.tensor([1.0, 2.0]), ([[1.0, -1.0], [1.0, 0.0]], [[-1.0, 1.0], [0.0, 1.0]])
    assert [cross_term(toy, torch.tensor(axes)).item() for axes in assignments] == [2, 5]  # as it prints
    assert torch.tensor(assignments[0]).prod(1).sum() != 0  # no axes of a kernel PCA, which are orthogonal


def test_ends_over_all_assignments_are_those_of_a_search():
    queries, axes = 6, 4
    h, projected = normal(BATCH, queries, axes, seed=7), normal(queries, axes, seed=8)
    eigenvalues = normal(axes, seed=9).abs()
    unit = torch.linalg.qr(normal(axes, axes, seed=10)).Q
    losses, crosses = [], []
    for order in itertools.permutations(range(axes)):
        columns = h[..., list(order)]
        crosses.append(cross_term(columns, unit * eigenvalues.sqrt()).mean(-1))
        linear = (projected * columns).mean(-2) * 2
        losses += [crosses[-1] + linear.abs().sum(-1), crosses[-1] - linear.abs().sum(-1)]
        assert torch.allclose(
            cross_term(columns, unit), h.square().sum(-1)
        )  # unit axes: no assignment matters
    for found, all_ in (
        (assigned_range(h, projected, eigenvalues), losses),
        (cross_term_range(h, eigenvalues), crosses),
    ):
        expected = torch.stack(all_)
        torch.testing.assert_close(
            found, torch.stack([expected.amin(0), expected.amax(0)], -1), rtol=1e-12, atol=0
        )


def test_a_training_is_told_by_quantity_and_convention():
    values = {
        ("saritas2025", "a"): (1.0, 2.0),
        ("saritas2025", "b"): (2.0, 4.0),
        ("exact", "a"): (9.0, 3.0),
        ("exact", "b"): (9.0, 3.0),
    }
    rows = [
        {
            "metric": "projection_error",
            "convention": convention,
            "checkpoint": checkpoint,
            "input": image,
            "value": value,
            "layer": None,
            "head": None,
            "statistic": None,
        }
        for (convention, image), ends in values.items()
        for checkpoint, value in zip(("epoch-0", "epoch-9"), ends, strict=True)
    ]
    frame = pd.DataFrame(rows)
    overall = frame.groupby(["metric", "convention", "checkpoint"], as_index=False)["value"].mean()
    (sentence,) = projection_error._through_training(pd.concat([frame, overall], ignore_index=True))
    assert "mean |‖φ(q)‖² − ‖h‖²| grows, from 1.5 to 3, " in sentence
    assert "exact projection error falls, from 9 to 3, " in sentence
