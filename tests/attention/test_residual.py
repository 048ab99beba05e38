import math

import pytest
import torch

from workbench.attention.residual import (
    BoostedResidual,
    boosted_residual,
    residual_growth,
    residual_lipschitz,
)
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


def layers_of_attention(dim, seed):
    """Softmax attention with random weights, a layer norm before it, as functions of tokens."""
    generator = torch.manual_seed(seed)
    weights = [torch.randn(4, dim, dim, dtype=torch.float64, generator=generator) for _ in range(3)]

    def attend(tokens, wq, wk, wv, wo):
        x = torch.nn.functional.layer_norm(tokens, (dim,))
        return torch.nn.functional.scaled_dot_product_attention(x @ wq, x @ wk, x @ wv) @ wo

    return [lambda tokens, parts=parts: attend(tokens, *parts) for parts in weights]


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, -0.2])
def test_growth_is_the_norm_of_the_whole_jacobian(t):
    """Beside matrices from autograd, layer by layer, composed by hand."""
    layers = layers_of_attention(5, seed=4)
    first = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.manual_seed(5))
    found = residual_growth(layers, first, t, tolerance=1e-8)
    assert found.growth.shape == (2, 3)
    unit = torch.eye(15, dtype=torch.float64)
    for number, tokens in enumerate(first):
        stream, whole, bound = tokens[None], unit, 1.0
        for place, layer in enumerate(layers):
            own = torch.autograd.functional.jacobian(layer, stream).reshape(15, 15)
            constant = torch.linalg.matrix_norm(own, ord=2).item()
            whole = own @ whole + t * unit + (1 - t) * whole
            bound = (constant + abs(1 - t)) * bound + abs(t)
            stream = layer(stream) + t * tokens + (1 - t) * stream
            expected = [constant, torch.linalg.matrix_norm(whole, ord=2).item(), bound]
            assert [part[number, place].item() for part in found] == pytest.approx(expected, rel=1e-9)
    assert (found.growth <= found.bound).all()


def test_with_linear_layers_of_one_norm_the_bounds_are_those_of_the_theorem():
    first = torch.randn(4, 3, dtype=torch.float64, generator=torch.manual_seed(6))
    found = residual_growth([lambda y: 1.5 * y] * 4, first, 0.4)
    expected = residual_lipschitz(1.5, 4, 0.4)[1:]
    torch.testing.assert_close(found.bound, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.growth, expected, rtol=1e-9, atol=0)  # and they are reached


def test_boosting_lowers_the_bound_and_not_every_network():
    """abdullaev2025 concludes that GRC reduces error propagation: f(y) = −y takes everything away, and GRC does not."""
    first = torch.randn(4, 3, dtype=torch.float64, generator=torch.manual_seed(7))
    plain, boosted = (residual_growth([lambda y: -y] * 3, first, t) for t in (0.0, 0.5))
    assert (boosted.bound[1:] < plain.bound[1:]).all()
    assert plain.growth[-1] < 1e-12
    assert boosted.growth[-1].item() == pytest.approx(0.25)
    with pytest.raises(InputError, match="at least one"):
        residual_growth([], first)
