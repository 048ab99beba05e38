import itertools
import math

import pytest
import torch

from workbench.analyses import eigenvector_test as module
from workbench.analyses.eigenvector_test import CANDIDATES, eigenvector_test
from workbench.analyses.gram_spectrum import centred_gram
from workbench.analyses.kernel_pca import kpca_values, principal_axes
from workbench.analyses.null_values import null_values
from workbench.core.errors import InputError, UnknownName

BATCH, HEADS, TOKENS, DIM, VALUE_DIM = 2, 3, 7, 5, 4
SCALE = DIM**-0.5
TRUE, PERTURBED, VALUES = range(3)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))


@pytest.fixture
def k():
    return normal(BATCH, HEADS, TOKENS, DIM)


@pytest.fixture
def v():
    return normal(BATCH, HEADS, TOKENS, VALUE_DIM, seed=1)


def normalisers(k):
    """g(k_j) = Σ_j' exp(s k_j·k_j') of one head."""
    return torch.stack([sum(torch.exp(SCALE * key @ other) for other in k) for key in k])


def by_definition(gram, candidate):
    """Pair statistics of γ and the residual for each column, straight from the formulas."""
    found = {"abs": [], "as_published": [], "as_implemented": [], "residual": [], "size": []}
    for column in candidate.mT:
        image = gram @ column
        gamma = (image / (len(gram) * column)).tolist()
        pairs = list(itertools.combinations(gamma, 2))
        for name, difference in (
            ("abs", lambda a, b: abs(a - b)),
            ("as_published", lambda a, b: abs(a - b) / max(abs(a), abs(b))),
            ("as_implemented", lambda a, b: abs(a - b) / (max(abs(a), abs(b)) + 1e-10)),
        ):
            values = torch.tensor([difference(a, b) for a, b in pairs], dtype=torch.float64)
            found[name].append([values.mean(), values.std()])
        rho = column @ image / (column @ column)
        found["residual"].append((image - rho * column).norm() / image.norm())
        found["size"].append(sum(map(abs, gamma)) / len(gamma))
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def test_values_are_tested_as_the_formulas_say(k, v):
    found = eigenvector_test(k, v, SCALE)
    for place in itertools.product(range(BATCH), range(HEADS)):
        gram = centred_gram(k[place], SCALE)
        undone = normalisers(k[place])[:, None] * v[place]  # G⁻¹ V
        mean = torch.full((TOKENS, TOKENS), 1 / TOKENS, dtype=torch.float64) @ undone
        candidate = undone - mean
        expected = by_definition(gram, candidate)
        close = {"rtol": 1e-9, "atol": 0}
        torch.testing.assert_close(found.gamma_abs[place][VALUES], expected["abs"], **close)
        for name in ("as_published", "as_implemented"):
            torch.testing.assert_close(found.gamma_rel[name][place][VALUES], expected[name], **close)
        torch.testing.assert_close(found.gamma_size[place][VALUES], expected["size"], **close)
        torch.testing.assert_close(found.eigen_residual[place][VALUES], expected["residual"], **close)
        torch.testing.assert_close(found.inconsistency[place], mean.norm() / undone.norm(), **close)
        vectors = torch.linalg.eigh(gram).eigenvectors[:, -VALUE_DIM:]
        share = (vectors.mT @ candidate).norm() ** 2 / candidate.norm() ** 2
        torch.testing.assert_close(found.span_share[place][VALUES], share, **close)


def test_true_eigenvectors_differ_only_by_rounding(k, v):
    found = eigenvector_test(k, v, SCALE)
    eigenvalues = torch.linalg.eigvalsh(centred_gram(k, SCALE)).flip(-1)[..., :VALUE_DIM]
    torch.testing.assert_close(found.gamma_size[..., TRUE, :], eigenvalues / TOKENS, rtol=1e-9, atol=0)
    true = found.gamma_abs[..., TRUE, :, 0]
    assert (true < 1e-13 * found.gamma_size[..., TRUE, :]).all()
    assert (found.gamma_rel["as_published"][..., TRUE, :, :] < 1e-12).all()
    assert (found.eigen_residual[..., TRUE, :] < 1e-13).all()
    torch.testing.assert_close(found.span_share[..., TRUE], torch.ones(BATCH, HEADS, dtype=torch.float64))


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_only_true_eigenvectors_differ_by_rounding_alone(precision):
    k, v = normal(3, 41, 6, seed=2), normal(3, 41, 11, seed=3)
    found = eigenvector_test(k, v, 0.3, precision=precision)
    true = found.gamma_abs[:, TRUE, :, 0]
    largest = found.gamma_size[:, TRUE, :1]
    assert (true < 1e3 * torch.finfo(getattr(torch, precision)).eps * largest).all()
    assert (found.gamma_abs[:, PERTURBED:, :, 0] > 200 * true[:, None]).all()


def test_float32_changes_rounding_and_nothing_else(k, v):
    double, single = (eigenvector_test(k, v, SCALE, precision=name) for name in ("float64", "float32"))
    assert (single.gamma_abs[..., TRUE, :, 0] > 1e6 * double.gamma_abs[..., TRUE, :, 0]).all()
    for name in ("gamma_abs", "eigen_residual"):
        one, two = (getattr(found, name)[:, :, PERTURBED:] for found in (single, double))
        torch.testing.assert_close(one, two, rtol=1e-2, atol=0)


def test_perturbed_eigenvectors_are_q_of_the_qr(k, v):
    still = eigenvector_test(k, v, SCALE, noise=0.0)
    assert (still.eigen_residual[..., PERTURBED, :] < 1e-12).all()
    moved = eigenvector_test(k, v, SCALE, noise=0.1, seeds=[*range(10, 16)])
    assert (moved.eigen_residual[..., PERTURBED, :] > 1e-3).all()
    errors = 0.1 * torch.randn(
        TOKENS,
        VALUE_DIM,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(module.derived_seed(12, "perturbed")),
    )
    orthogonal = torch.linalg.qr(principal_axes(k[0, 2], SCALE, VALUE_DIM).vectors + errors).Q
    expected = by_definition(centred_gram(k[0, 2], SCALE), orthogonal)
    torch.testing.assert_close(moved.eigen_residual[0, 2, PERTURBED], expected["residual"], rtol=1e-9, atol=0)
    torch.testing.assert_close(moved.gamma_abs[0, 2, PERTURBED], expected["abs"], rtol=1e-9, atol=0)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_kernel_pca_values_pass_every_test(k, factor):
    axes = principal_axes(factor * k[1, 0], SCALE, VALUE_DIM)
    resolved = int(axes.resolved)
    assert resolved > 0
    found = eigenvector_test(factor * k[1, 0], kpca_values(axes).values, SCALE)
    assert found.inconsistency < 1e-12
    assert (found.eigen_residual[VALUES, :resolved] < 1e-6).all()
    assert (found.gamma_rel["as_published"][TRUE, :resolved, 0] < 1e-3).all()


def test_inconsistency_is_one_where_the_values_are_constant_along_g(k):
    axes = principal_axes(k[0, 0], SCALE)
    v = torch.stack([(-axes.log_normaliser).exp() * c for c in (1.0, -2.5)], -1)  # V = G 1 cᵀ
    found = eigenvector_test(k[0, 0], v, SCALE, null_samples=3)
    torch.testing.assert_close(found.inconsistency, torch.ones((), dtype=torch.float64))
    assert found.eigen_residual[VALUES].isnan().all()
    assert found.span_share[VALUES].isnan()
    assert found.eigen_residual[TRUE].isfinite().all()
    assert found.null_samples["gaussian"].eigen_residual.isfinite().all()


def test_size_of_v_and_shift_along_g_do_not_matter_for_eigenvectors(k, v):
    base = eigenvector_test(k, v, SCALE)
    shifts = torch.exp(-torch.logsumexp(SCALE * k @ k.mT, -1))[..., None] * normal(VALUE_DIM, seed=4)
    for changed in (1e-250 * v, v + shifts):
        found = eigenvector_test(k, changed, SCALE)
        torch.testing.assert_close(found.eigen_residual, base.eigen_residual, rtol=1e-9, atol=1e-13)
        torch.testing.assert_close(found.span_share, base.span_share, rtol=1e-9, atol=0)


def test_a_mask_gives_what_the_real_tokens_alone_give(k, v):
    mask = torch.ones(BATCH, 1, TOKENS, dtype=torch.bool)
    mask[0, 0, [1, 4]] = False
    padded_k, padded_v = k.clone(), v.clone()
    padded_k[0, :, [1, 4]] = math.nan
    padded_v[0, :, [1, 4]] = math.inf
    seeds = [*range(HEADS * BATCH)]
    masked = eigenvector_test(padded_k, padded_v, SCALE, mask, null_samples=3, seeds=seeds)
    real = [0, 2, 3, 5, 6]
    alone = eigenvector_test(k[0][:, real], v[0][:, real], SCALE, null_samples=3, seeds=seeds[:HEADS])
    for one, two in zip(flat(masked), flat(alone), strict=True):
        torch.testing.assert_close(one[0], two, rtol=1e-12, atol=1e-16, equal_nan=True)


def flat(found):
    """All tensors of a result."""
    for part in found.values() if isinstance(found, dict) else found:
        if isinstance(part, torch.Tensor):
            yield part
        else:
            yield from flat(part)


def test_more_columns_than_axes(k):
    v = normal(BATCH, HEADS, TOKENS, 9, seed=5)
    found = eigenvector_test(k, v, SCALE)
    assert (found.axes == TOKENS - 1).all()
    assert found.gamma_abs.shape == (BATCH, HEADS, len(CANDIDATES), 9, 2)
    assert found.gamma_abs[..., :VALUES, : TOKENS - 1, :].isfinite().all()
    assert found.gamma_abs[..., :VALUES, TOKENS - 1 :, :].isnan().all()
    assert found.gamma_abs[..., VALUES, :, :].isfinite().all()
    # N − 1 axes are all there is
    ones = torch.ones(BATCH, HEADS, dtype=torch.float64)
    torch.testing.assert_close(found.span_share[..., VALUES], ones)
    torch.testing.assert_close(found.span_isotropic, ones)


def test_equal_keys_have_no_eigenvectors_but_an_inconsistency(v):
    found = eigenvector_test(torch.full((BATCH, HEADS, TOKENS, DIM), 0.7), v, SCALE, null_samples=2)
    assert (found.resolved == 0).all()
    for part in (
        found.gamma_abs,
        found.eigen_residual,
        found.span_share,
        found.span_isotropic,
    ):
        assert part.isnan().all()
    assert found.null_samples["permutation"].span_share.isnan().all()
    centred = v - v.mean(-2, keepdim=True)
    expected = (1 - centred.square().sum((-2, -1)) / v.square().sum((-2, -1))).sqrt()  # here G is one number
    torch.testing.assert_close(found.inconsistency, expected)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_keys_of_any_size(v, precision):
    for factor in (1e-3, 10.0, 100.0):
        k = factor * normal(BATCH, HEADS, TOKENS, DIM)
        found = eigenvector_test(k, v, SCALE, precision=precision)
        assert found.inconsistency.isfinite().all()
        assert found.span_share[..., VALUES].isfinite().all()
        assert found.gamma_rel["as_published"][..., VALUES, :, :].isfinite().all()


def test_zero_columns_and_zero_values_are_undefined_alone(k, v):
    dead = v.clone()
    dead[..., 1] = 0
    found = eigenvector_test(k, dead, SCALE)
    whole = eigenvector_test(k, v, SCALE)
    assert found.eigen_residual[..., VALUES, 1].isnan().all()
    kept = [0, 2, 3]
    torch.testing.assert_close(
        found.eigen_residual[..., VALUES, kept], whole.eigen_residual[..., VALUES, kept]
    )
    assert found.span_share.isfinite().all()
    nothing = eigenvector_test(k, torch.zeros_like(v), SCALE)
    assert nothing.inconsistency.isnan().all()
    assert nothing.gamma_abs[..., VALUES, :, :].isnan().all()
    assert nothing.gamma_abs[..., :VALUES, :, :].isfinite().all()


def test_draws_are_the_tests_of_null_values(k, v):
    seeds = [31, 7, 5, 11, 2, 3]
    found = eigenvector_test(k, v, SCALE, null_samples=3, seeds=seeds)
    for null in ("gaussian", "permutation", "rotation"):
        drawn = null_values(v[1, 0], null, 3, seeds[3])
        for number in range(3):
            alone = eigenvector_test(k[1, 0], drawn[number], SCALE)
            for name in ("inconsistency", "eigen_residual", "span_share"):
                one = getattr(found.null_samples[null], name)[1, 0, number]
                two = getattr(alone, name)
                torch.testing.assert_close(one, two if name == "inconsistency" else two[VALUES])
    assert eigenvector_test(k, v, SCALE, nulls=["gaussian"], null_samples=2).null_samples.keys() == {
        "gaussian"
    }
    assert not eigenvector_test(k, v, SCALE).null_samples


def test_span_share_of_chance():
    # a random direction orthogonal to 1 lies in r of its N − 1 dimensions; 1e5 of them say so to three digits
    axes = principal_axes(normal(23, 6), 0.4, 8)
    directions = normal(100_000, 23, seed=6)
    directions = directions - directions.mean(-1, keepdim=True)
    shares = module.span_share(axes.vectors, directions[..., None])
    assert float(shares.mean()) == pytest.approx(8 / 22, rel=5e-3)
    found = eigenvector_test(normal(23, 6), normal(23, 8, seed=7), 0.4)
    assert float(found.span_isotropic) == pytest.approx(8 / 22, rel=1e-15)


def test_null_values():
    v = normal(2000, 3) * torch.tensor([1.0, 2.0, 5.0]) + 4
    gaussian = null_values(v, "gaussian", 5, 8)
    assert gaussian.shape == (5, 2000, 3)
    assert torch.equal(gaussian, null_values(v, "gaussian", 5, 8))
    assert float(gaussian.square().mean() / v.square().mean()) == pytest.approx(1, abs=0.03)
    permuted = null_values(v, "permutation", 5, 8)
    order = v[:, 0].argsort()
    for draw in permuted:
        assert not torch.equal(draw, v)
        assert torch.equal(draw[draw[:, 0].argsort()], v[order])
    assert not torch.equal(permuted[0], permuted[1])


@pytest.mark.parametrize(("tokens", "width"), [(23, 5), (7, 7), (8, 7), (6, 11), (9, 1)])
def test_rotated_values_keep_mean_and_spectra(tokens, width):
    v = normal(tokens, width, seed=3) * torch.linspace(0.1, 4, width) + 2
    drawn = null_values(v, "rotation", 4, 8)
    assert drawn.shape == (4, tokens, width)
    assert torch.equal(drawn, null_values(v, "rotation", 4, 8))
    assert not torch.allclose(drawn[0], drawn[1])
    for one in drawn:
        torch.testing.assert_close(one.mean(0), v.mean(0), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(one.T @ one, v.T @ v, rtol=1e-12, atol=1e-10)
        for centre in (0, 1):
            kept, true = [torch.linalg.svdvals(x - centre * x.mean(0)) for x in (one, v)]
            torch.testing.assert_close(kept, true, rtol=1e-12, atol=1e-12 * float(true[0]))


def test_rotations_are_uniform():
    # orthonormal columns orthogonal to 1 go to uniform ones: E u_i² = (1 − 1/N) / (N − 1) = 1/N
    frame = torch.linalg.qr(normal(6, 3) - normal(6, 3).mean(0)).Q
    drawn = null_values(frame, "rotation", 40_000, 5)
    torch.testing.assert_close(drawn.square().mean(0), torch.full_like(frame, 1 / 6), rtol=0.02, atol=0)
    assert drawn.mean(0).abs().max() < 0.01  # no sign is preferred, which R's diagonal would do
    # moments that tell a uniform frame from other orthogonal ones: E u_i⁴ = 3 (1 − 1/N)² / ((N − 1)(N + 1))
    fourth = 3 * (1 - 1 / 6) ** 2 / (5 * 7)
    torch.testing.assert_close(drawn.pow(4).mean(0), torch.full_like(frame, fourth), rtol=0.05, atol=0)


def test_a_value_of_equal_tokens_is_not_rotated():
    v = torch.ones(5, 3, dtype=torch.float64) * torch.tensor([1.0, 2.0, 4.0])
    torch.testing.assert_close(null_values(v, "rotation", 2, 0), v.expand(2, 5, 3), rtol=1e-12, atol=1e-12)


def test_what_does_not_fit_is_refused(k, v):
    with pytest.raises(UnknownName, match="float32"):
        eigenvector_test(k, v, SCALE, precision="float16")
    with pytest.raises(UnknownName, match="gaussian"):
        eigenvector_test(k, v, SCALE, null_samples=2, nulls=["normal"])
    with pytest.raises(InputError, match="null_samples"):
        eigenvector_test(k, v, SCALE, null_samples=-1)
    with pytest.raises(InputError, match="noise"):
        eigenvector_test(k, v, SCALE, noise=-0.1)
    with pytest.raises(InputError, match="seeds"):
        eigenvector_test(k, v, SCALE, seeds=[1, 2])
    with pytest.raises(InputError, match="does not fit k"):
        eigenvector_test(k, v[:, :, :5], SCALE)
    with pytest.raises(InputError, match="missing axis token"):
        eigenvector_test(k[0, 0, 0], v, SCALE)
    v[1, 2, 3, 1] = math.nan
    with pytest.raises(InputError, match="head_dim 1"):
        eigenvector_test(k, v, SCALE)


def test_spans_are_of_the_axes_that_stand_above_rounding():
    """Three different keys among six tokens have two axes: what lies in the other three counts as outside."""
    k = normal(3, DIM)[[0, 0, 1, 1, 1, 2]]
    v = normal(6, 8, seed=2)
    found = eigenvector_test(k, v, SCALE)
    assert found.resolved == 2
    axes = principal_axes(k, SCALE).vectors[:, :2]
    undone = v * normalisers(k)[:, None]
    candidate = undone - undone.mean(0)
    expected = (axes @ axes.mT @ candidate).square().sum() / candidate.square().sum()
    torch.testing.assert_close(found.span_share[VALUES], expected)
    assert found.span_isotropic == 2 / 5


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_axes_without_an_eigenvalue_stay_orthogonal_to_the_constant_in_any_precision(precision):
    axes = principal_axes(normal(3, DIM)[[0, 0, 1, 1, 1, 2]], SCALE)
    vectors = module._in_precision(axes, getattr(torch, precision))
    assert vectors.shape == (6, 5)
    assert vectors.sum(0).abs().max() < 1e-4
