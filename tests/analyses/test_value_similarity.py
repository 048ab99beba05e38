import math
from itertools import permutations

import pytest
import torch
from scipy.linalg import subspace_angles

from workbench.analyses.kernel_pca import kpca_values, principal_axes
from workbench.analyses.value_matrix import ValueMatrix
from workbench.analyses.value_similarity import (
    QUANTITIES,
    Options,
    Quantity,
    chosen_quantities,
    similarities,
    value_similarity,
)
from workbench.core.errors import InputError, UnknownName

TOKENS, KEY_DIM, DIM = 11, 5, 4
SCALE = KEY_DIM**-0.5
SIGN_FREE = ("LCKA", "KCKA", "principal_angle", "span_share")


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


@pytest.fixture
def axes():
    return principal_axes(random(TOKENS, KEY_DIM), SCALE, DIM)


@pytest.fixture
def v():
    return random(TOKENS, DIM, seed=1)


def named(values, quantities=QUANTITIES):
    return dict(zip(quantities, values.tolist(), strict=True))


def cosine(a, b):
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def best_matching(cosines):
    """Every one-to-one matching of few rows to columns, by hand."""
    best, chosen = -math.inf, None

    def extend(row, used, picked):
        nonlocal best, chosen
        if row == len(cosines):
            if sum(picked) > best:
                best, chosen = sum(picked), picked
            return
        for column in range(len(cosines[0])):
            if column not in used:
                extend(row + 1, used | {column}, [*picked, cosines[row][column]])

    extend(0, frozenset(), [])
    return chosen


def statistics(metric, axis, values):
    return {
        Quantity(metric, axis, "max"): max(values),
        Quantity(metric, axis, "mean"): sum(values) / len(values),
    }


def naive_cosines(v, wanted):
    columns = [[cosine(a, b) for b in wanted.T] for a in v.T]
    rows = [[cosine(a, b) for b in wanted] for a in v]
    direct = [columns[i][i] for i in range(len(columns))]
    return (
        statistics("MDC", "features", direct)
        | statistics("MDC", "tokens", [rows[i][i] for i in range(len(rows))])
        | statistics("MOC", "features", best_matching(columns))
        | statistics("MOC", "tokens", best_matching(rows))
        | statistics("abs_cos", "features", [abs(c) for c in direct])
    )


def test_cosines_equal_loops_over_vectors_and_matchings():
    few = 6
    axes = principal_axes(random(few, KEY_DIM), SCALE, DIM)
    v = random(few, DIM, seed=1)
    found = named(similarities(v, axes))
    for quantity, expected in naive_cosines(v, kpca_values(axes).product()).items():
        assert found[quantity] == pytest.approx(expected, rel=1e-12), quantity


def hsic(a, b):
    """Biased HSIC from the definition, tr(K C L C)."""
    n = len(a)
    centring = torch.eye(n, dtype=torch.float64) - 1 / n
    return float((a @ centring @ b @ centring).trace())


def gaussian_kernel(x):
    n = len(x)
    squared = [[float((x[i] - x[j]).square().sum()) for j in range(n)] for i in range(n)]
    pairs = sorted(squared[i][j] for i in range(n) for j in range(i + 1, n))
    width = pairs[(len(pairs) - 1) // 2]  # the lower median
    return torch.tensor([[math.exp(-d / (2 * width)) for d in row] for row in squared], dtype=torch.float64)


@pytest.mark.parametrize("tokens", [TOKENS, TOKENS - 1, TOKENS - 3])  # 55, 45 and 28 pairs: odd and even
def test_centered_kernel_alignments_equal_their_definition(tokens):
    axes = principal_axes(random(tokens, KEY_DIM), SCALE, DIM)
    v, wanted = random(tokens, DIM, seed=1), kpca_values(axes).product()
    found = named(similarities(v, axes))
    for metric, kernel in (("LCKA", lambda x: x @ x.T), ("KCKA", gaussian_kernel)):
        a, b = kernel(v), kernel(wanted)
        expected = hsic(a, b) / math.sqrt(hsic(a, a) * hsic(b, b))
        assert found[Quantity(metric)] == pytest.approx(expected, rel=1e-9), metric


def test_angles_and_span_equal_scipy_and_a_projection(axes, v):
    wanted = kpca_values(axes).product()
    angles = subspace_angles(v.numpy(), wanted.numpy())
    projected = wanted @ torch.linalg.lstsq(wanted, v).solution
    found = named(similarities(v, axes))
    assert found[Quantity("principal_angle", statistic="min")] == pytest.approx(angles.min(), rel=1e-10)
    assert found[Quantity("principal_angle", statistic="mean")] == pytest.approx(angles.mean(), rel=1e-10)
    assert found[Quantity("span_share")] == pytest.approx(
        float((projected.norm() / v.norm()) ** 2), rel=1e-10
    )


def test_a_small_angle_is_exact(axes):
    wanted = kpca_values(axes).product()
    outside = torch.linalg.qr(torch.cat([wanted, random(TOKENS, 1, seed=3)], 1))[0][:, -1:]
    first = wanted[:, :1] / wanted[:, :1].norm()
    angle = 1e-9
    tilted = torch.cat([math.cos(angle) * first + math.sin(angle) * outside, random(TOKENS, 3, seed=4)], 1)
    quantity = Quantity("principal_angle", statistic="min")
    assert similarities(tilted[:, :1], axes, [quantity]).item() == pytest.approx(angle, rel=1e-5)


def test_the_kernel_pca_values_themselves_are_found_equal(axes):
    found = named(similarities(kpca_values(axes).product(), axes))
    for quantity, value in found.items():
        if (quantity.metric, quantity.axis) == ("MOC", "tokens") or quantity.metric == "principal_angle":
            continue
        assert value == pytest.approx(1.0, rel=1e-12), quantity
    for statistic in ("max", "mean"):
        assert found[Quantity("MOC", "tokens", statistic)] == pytest.approx(1.0, rel=1e-12)
    for statistic in ("min", "mean"):
        assert found[Quantity("principal_angle", statistic=statistic)] == pytest.approx(0.0, abs=1e-12)


def test_alignments_see_neither_rotation_nor_scale(axes, v):
    rotation = torch.linalg.qr(random(DIM, DIM, seed=2))[0]
    quantities = [quantity for quantity in QUANTITIES if quantity.metric in SIGN_FREE]
    expected = similarities(v, axes, quantities)
    for factor in (1.0, 1e-200, 1e200):
        torch.testing.assert_close(
            similarities(factor * v @ rotation, axes, quantities), expected, rtol=1e-12, atol=0
        )


def test_signs_and_order_of_eigenvectors_change_only_what_depends_on_them(axes, v):
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    order = torch.tensor([2, 0, 3, 1])
    flipped = axes._replace(vectors=axes.vectors * signs)
    shuffled = axes._replace(vectors=axes.vectors[:, order])
    both = axes._replace(vectors=(axes.vectors * signs)[:, order])
    expected = named(similarities(v, axes))
    for other, same, changed in (
        (flipped, (*SIGN_FREE, "abs_cos"), ("MDC", "MOC")),
        (shuffled, SIGN_FREE, ("MDC", "abs_cos")),
        (both, SIGN_FREE, ("MDC", "MOC", "abs_cos")),
    ):
        found = named(similarities(v, other))
        for quantity, value in expected.items():
            if quantity.metric in same:
                assert found[quantity] == pytest.approx(value, rel=1e-10), quantity
            if quantity.metric in changed and quantity.statistic == "mean":
                assert found[quantity] != pytest.approx(value, rel=1e-3), quantity
    # the best matching of columns does not see their order
    for statistic in ("max", "mean"):
        quantity = Quantity("MOC", "features", statistic)
        assert named(similarities(v, shuffled))[quantity] == pytest.approx(expected[quantity], rel=1e-12)


def test_allclose_uses_the_tolerances_of_its_convention(axes):
    wanted = kpca_values(axes).product()
    text, code = (
        Quantity("allclose", convention="as_published"),
        Quantity("allclose", convention="as_implemented"),
    )
    for error, found in (
        (0.9e-3 + 0 * wanted, [1.0, 0.0]),
        (0.9e-3 * wanted, [1.0, 1.0]),
        (0.9e-5 + 0.9e-3 * wanted.abs(), [1.0, 1.0]),
        (1.2e-3 + 0 * wanted, [0.0, 0.0]),
    ):
        assert similarities(wanted + error, axes, [text, code]).tolist() == found


def test_chosen_quantities_come_in_the_order_asked_for(axes, v):
    chosen = [Quantity("KCKA"), Quantity("MDC", "tokens", "mean"), Quantity("LCKA")]
    expected = named(similarities(v, axes))
    assert similarities(v, axes, chosen).tolist() == [expected[quantity] for quantity in chosen]
    several = torch.stack([v, 2 * v, v + 1])[:, None]
    assert similarities(several, axes, chosen).shape == (3, 1, 3)
    with pytest.raises(UnknownName, match="unknown quantity"):
        similarities(v, axes, [Quantity("MDC")])


def test_maxima_come_with_the_smallest_angle_and_means_with_the_mean_one():
    """The largest cosine is that of the smallest angle."""
    for statistic, of_angles in (("max", {"min"}), ("mean", {"mean"}), ("both", {"min", "mean"})):
        chosen = chosen_quantities(Options(statistic=statistic))
        assert {one.statistic for one in chosen if one.metric == "principal_angle"} == of_angles
        wanted = {"max", "mean"} if statistic == "both" else {statistic}
        assert {one.statistic for one in chosen if one.metric in ("MDC", "MOC", "abs_cos")} == wanted
        assert {"LCKA", "KCKA", "allclose", "span_share"} < {one.metric for one in chosen}


def batch(batch=2, heads=3, tokens=TOKENS, seed=0):
    return random(batch, heads, tokens, KEY_DIM, seed=seed), random(batch, heads, tokens, DIM, seed=seed + 1)


def test_a_batch_is_head_by_head():
    k, v = batch()
    scale = torch.tensor([0.2, 0.4, 0.6])
    found = value_similarity(k, v, scale, null_samples=3, seeds=range(10, 16))
    assert found.observed.shape == (2, 3, len(QUANTITIES))
    assert (found.axes == DIM).all()
    assert (found.resolved == DIM).all()
    for b, h in ((0, 2), (1, 1)):
        alone = value_similarity(k[b, h], v[b, h], scale[h], null_samples=3, seeds=[10 + 3 * b + h])
        assert torch.equal(found.observed[b, h], alone.observed)
        for null in ("gaussian", "permutation"):
            assert found.null_samples[null].shape == (2, 3, 3, len(QUANTITIES))
            assert torch.equal(found.null_samples[null][b, h], alone.null_samples[null])
        expected = similarities(v[b, h], principal_axes(k[b, h], scale[h].double(), DIM))
        torch.testing.assert_close(found.observed[b, h], expected, rtol=1e-12, atol=0)


def test_masked_padding_gives_what_unpadded_tokens_give():
    k, v = batch()
    mask = torch.ones(2, 1, TOKENS + 4, dtype=torch.bool)
    mask[:, :, TOKENS:] = False
    mask[1, :, 8:] = False
    pad = torch.full((2, 3, 4, 1), math.nan, dtype=torch.float64)
    padded = [torch.cat([x, pad.expand(-1, -1, -1, x.shape[-1])], -2) for x in (k, v)]
    seeds = range(6)
    found = value_similarity(*padded, SCALE, mask, null_samples=2, seeds=seeds)
    for b, length in ((0, TOKENS), (1, 8)):
        alone = value_similarity(
            k[b, :, :length], v[b, :, :length], SCALE, null_samples=2, seeds=list(seeds)[3 * b : 3 * b + 3]
        )
        assert torch.equal(found.observed[b], alone.observed)
        assert all(
            torch.equal(found.null_samples[null][b], alone.null_samples[null]) for null in alone.null_samples
        )


def test_permuted_draws_are_the_metrics_of_permuted_values():
    tokens, samples = 4, 30
    k, v = (x[0, 0] for x in batch(tokens=tokens))
    found = value_similarity(k, v, SCALE, null_samples=samples, seeds=[5], nulls=["permutation"])
    assert set(found.null_samples) == {"permutation"}
    drawn = found.null_samples["permutation"]
    every = similarities(
        v[torch.tensor([*permutations(range(tokens))])], principal_axes(k, SCALE, tokens - 1)
    )
    apart = (drawn[:, None] - every).abs().amax(-1)  # (draw, order)
    assert apart.amin(-1).max() < 1e-11
    assert len(set(apart.argmin(-1).tolist())) > len(every) / 2
    # the order of the rows does not change their best matching
    best = QUANTITIES.index(Quantity("MOC", "tokens", "mean"))
    torch.testing.assert_close(drawn[:, best], found.observed[best].expand(samples))


def test_gaussian_values_lie_within_the_null_distribution():
    heads, null_samples = 200, 10
    k = random(heads, 9, KEY_DIM)
    v = random(heads, 9, DIM, seed=1)
    chosen = [quantity for quantity in QUANTITIES if quantity.metric != "allclose"]  # 0 in every draw
    found = value_similarity(k, v, SCALE, null_samples=null_samples, nulls=["gaussian"], quantities=chosen)
    drawn = found.null_samples["gaussian"]
    z = (found.observed - drawn.mean(-2)) / drawn.std(-2)
    for quantity, mean in named(z.mean(0), chosen).items():
        assert abs(mean) < 0.3, quantity


@pytest.mark.parametrize("tokens", [2, 3, DIM, DIM + 1])
def test_sequences_shorter_than_the_values_have_fewer_axes(tokens):
    k, v = (x[0] for x in batch(1, 3, tokens))
    found = value_similarity(k, v, SCALE, null_samples=2)
    assert (found.axes == min(DIM, tokens - 1)).all()
    assert found.observed.isfinite().all()
    assert all(drawn.isfinite().all() for drawn in found.null_samples.values())
    axes = principal_axes(k[1], SCALE, DIM)
    wanted = kpca_values(axes).product()
    rank = wanted.shape[1]
    direct = [cosine(v[1][:, i], wanted[:, i]) for i in range(rank)]
    padded = torch.cat([wanted, torch.zeros(tokens, DIM - rank, dtype=torch.float64)], 1)
    rows = [cosine(v[1][i], padded[i]) for i in range(tokens)]
    values = named(found.observed[1])
    assert values[Quantity("MDC", "features", "mean")] == pytest.approx(sum(direct) / rank, rel=1e-10)
    assert values[Quantity("MDC", "tokens", "max")] == pytest.approx(max(rows), rel=1e-10)


def test_values_of_low_rank_span_what_they_span(axes, v):
    angle = Quantity("principal_angle", statistic="mean")
    one = v[:, :1]
    repeated = torch.cat([one, 2 * one, -one, torch.zeros_like(one)], 1)
    found = named(similarities(repeated, axes))
    expected = float(subspace_angles(one.numpy(), kpca_values(axes).product().numpy())[0])
    assert found[angle] == pytest.approx(expected, rel=1e-10)
    assert all(math.isfinite(value) for value in found.values())


@pytest.mark.parametrize("seed", range(5))
def test_equal_and_absent_values_leave_undefined_only_what_they_must(axes, seed):
    equal = named(similarities(random(DIM, seed=seed).expand(TOKENS, DIM), axes))
    zero = named(similarities(torch.zeros(TOKENS, DIM), axes))
    undefined = {"LCKA", "KCKA"}
    assert {q.metric for q, value in equal.items() if math.isnan(value)} == undefined
    assert {q.metric for q, value in zero.items() if math.isnan(value)} == undefined | {
        "principal_angle",
        "span_share",
    }
    assert zero[Quantity("MOC", "features", "max")] == 0


def test_mostly_equal_tokens_have_the_kernel_of_the_limit():
    v = torch.zeros(TOKENS, DIM, dtype=torch.float64)
    v[0], v[1] = 1.0, -2.0  # 36 of 55 pairs are equal: the median distance is 0
    k = random(TOKENS, KEY_DIM)
    axes = principal_axes(k, SCALE, DIM)
    same = torch.tensor([[float(torch.equal(a, b)) for b in v] for a in v], dtype=torch.float64)
    other = gaussian_kernel(kpca_values(axes).product())
    expected = hsic(same, other) / math.sqrt(hsic(same, same) * hsic(other, other))
    assert similarities(v, axes, [Quantity("KCKA")]).item() == pytest.approx(expected, rel=1e-9)


def test_equal_keys_have_no_axes_to_compare_with():
    k, v = batch()
    k[0, 1] = 0.3
    found = value_similarity(k, v, SCALE, null_samples=2)
    assert found.resolved[0].tolist() == [DIM, 0, DIM]
    assert found.observed[0, 1].isnan().all()
    assert found.null_samples["gaussian"][0, 1].isnan().all()
    assert found.observed[0, [0, 2]].isfinite().all()


def test_large_keys_underflow_nowhere():
    k, v = batch()
    found = value_similarity(40 * k, v, SCALE)
    assert found.observed.isfinite().all()
    rows = QUANTITIES.index(Quantity("MDC", "tokens", "mean"))
    assert (found.observed[..., rows] != 0).all()


def test_input_that_does_not_fit_is_refused():
    k, v = batch()
    with pytest.raises(InputError, match="axis token is empty"):
        value_similarity(torch.randn(2, 3, 0, 4), torch.randn(2, 3, 0, 4), 0.5)
    with pytest.raises(InputError, match=r"v of shape \(2, 3, 10, 4\) does not fit k"):
        value_similarity(k, v[:, :, 1:], SCALE)
    with pytest.raises(UnknownName, match="unknown null 'normal'"):
        value_similarity(k, v, SCALE, null_samples=2, nulls=["normal"])
    with pytest.raises(InputError, match="4 seeds for 6 heads"):
        value_similarity(k, v, SCALE, null_samples=2, seeds=range(4))


@pytest.mark.parametrize("tokens", [4, 5, 7])
def test_the_kernel_s_width_is_the_lower_median_of_squared_distances(tokens):
    """4 and 5 tokens have 6 and 10 pairs, an even number; 7 have 21."""
    matrix = ValueMatrix(torch.randn(tokens, 3, dtype=torch.float64, generator=torch.manual_seed(tokens)))
    squared = torch.pdist(matrix.scaled).square().sort().values
    width = squared[(len(squared) - 1) // 2]
    assert matrix.width == (pytest.approx(width.item(), rel=1e-12), False)
    kernel = (-torch.cdist(matrix.scaled, matrix.scaled).square() / (2 * width)).exp()
    kernel = kernel - kernel.mean(0)
    kernel = kernel - kernel.mean(1, keepdim=True)
    torch.testing.assert_close(matrix.kernel, kernel / kernel.norm(), rtol=1e-9, atol=1e-12)
