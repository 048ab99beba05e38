import math

import pytest
import torch

from workbench.attention.residual import BoostedResidual, boosted_residual, residual_lipschitz
from workbench.core.errors import InputError


def test_at_zero_it_is_the_ordinary_residual():
    torch.manual_seed(0)
    update, stream, first = torch.randn(3, 2, 5, 7)
    assert torch.equal(boosted_residual(update, stream, first, 0.0), stream + update)
    module = BoostedResidual()
    assert torch.equal(module(update, stream, first), stream + update)
    assert [tuple(p.shape) for p in module.parameters()] == [()]


def test_equation_26():
    torch.manual_seed(1)
    update, stream, first = torch.randn(3, 2, 5, 7, dtype=torch.float64)
    t = 0.3
    torch.testing.assert_close(
        boosted_residual(update, stream, first, t), update + t * first + (1 - t) * stream
    )
    # At t = 1 nothing of the stream is left but the update.
    torch.testing.assert_close(boosted_residual(update, stream, first, 1.0), update + first)


def test_gradient_reaches_t():
    torch.manual_seed(2)
    module = BoostedResidual()
    update, stream, first = torch.randn(3, 2, 5, 7)
    module(update, stream, first).sum().backward()
    torch.testing.assert_close(module.t.grad, (first - stream).sum())


@pytest.mark.parametrize("t", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("lipschitz", [0.4, 2.5])
def test_linear_layers_reach_the_bounds_of_theorem_iv_1(lipschitz, t):
    """f(y) = L y has the constant L, and the composed map, its matrix found by columns, has exactly K_ℓ."""
    bounds = residual_lipschitz(lipschitz, 6, t)
    first = stream = torch.eye(3, dtype=torch.float64)
    for bound in bounds.tolist():
        assert torch.linalg.matrix_norm(stream, ord=2).item() == pytest.approx(bound, rel=1e-12)
        stream = boosted_residual(lipschitz * stream, stream, first, t)


def test_no_linear_layers_of_that_norm_exceed_the_bounds():
    torch.manual_seed(3)
    bounds = residual_lipschitz(1.5, 5, 0.4)
    first = stream = torch.eye(4, dtype=torch.float64)
    for bound in bounds[1:].tolist():
        layer = torch.randn(4, 4, dtype=torch.float64)
        layer *= 1.5 / torch.linalg.matrix_norm(layer, ord=2)
        stream = boosted_residual(stream @ layer, stream, first, 0.4)
        assert torch.linalg.matrix_norm(stream, ord=2) <= bound


@pytest.mark.parametrize(("lipschitz", "t"), [(2.5, 0.3), (0.4, 1.0), (1.2, 0.0)])
def test_closed_form(lipschitz, t):
    bounds = residual_lipschitz(lipschitz, 7, t).tolist()
    closed = [(lipschitz * (lipschitz + 1 - t) ** n - t) / (lipschitz - t) for n in range(8)]
    assert bounds == pytest.approx(closed, rel=1e-12)


def test_where_the_closed_form_has_a_hole_the_bound_is_linear():
    """t = L: K_{ℓ+1} = K_ℓ + L."""
    assert residual_lipschitz(0.5, 4, 0.5).tolist() == pytest.approx([1, 1.5, 2, 2.5, 3])


def test_the_ratio_falls_as_the_theorem_says():
    ratio = residual_lipschitz(2.0, 40, 0.5) / residual_lipschitz(2.0, 40)
    per_layer = ratio[1:] / ratio[:-1]
    assert per_layer[-1].item() == pytest.approx(1 - 0.5 / 3, rel=1e-6)


@pytest.mark.parametrize(
    ("lipschitz", "layers", "t"), [(-1, 2, 0), (1, -2, 0), (1, 2, 1.5), (1, 2, math.nan)]
)
def test_values_outside_the_theorem(lipschitz, layers, t):
    with pytest.raises(InputError, match="need lipschitz"):
        residual_lipschitz(lipschitz, layers, t)
