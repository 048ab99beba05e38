"""The layers of a point: the modules' own outputs, and counts that are known by formula."""

import dataclasses

import pytest
import torch

from workbench.papers.operators import BOTH, CONDITIONS, FORWARD, OPERATORS, SWEEPS, Point
from workbench.studies.records import scaling_record
from workbench.studies.scaling.layers import attention_layers, forecast, one_pass
from workbench.studies.training.cost_measures import Allocations

N, D, HEADS, LAYERS = 21, 12, 3, 5


def _point(operator, **changed):
    return dataclasses.replace(Point("tokens", operator, HEADS, D, N, LAYERS), **changed)


@pytest.mark.parametrize("causal", ["", "-causal"])
def test_eager_and_fused_softmax_compute_the_same(causal):
    fused, eager = (attention_layers(_point(name + causal)).double() for name in ("softmax", "softmax-eager"))
    eager.load_state_dict(fused.state_dict())
    x = torch.randn(1, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(eager(x), fused(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("operator", OPERATORS)
def test_only_causal_operators_look_at_earlier_tokens_alone(operator):
    layers = attention_layers(_point(operator)).double()
    x = torch.randn(1, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    changed = x.clone()
    changed[:, -1] += 1
    same = torch.allclose(layers(x)[:, :-1], layers(changed)[:, :-1], rtol=0, atol=1e-12)
    assert same == operator.endswith("-causal")


def test_layers_feed_each_other_and_share_no_memory():
    layers = attention_layers(_point("tssa"))
    x = torch.randn(1, N, D)
    expected = x
    for layer in layers:
        expected = layer(expected)
    assert torch.equal(one_pass(layers, x, FORWARD)(), expected)
    places = {weight.data_ptr() for weight in layers.parameters()}
    assert len(places) == len(list(layers.parameters())) == LAYERS * len(list(layers[0].parameters()))


def test_a_pass_with_backward_gives_the_gradient_of_every_weight():
    layers = attention_layers(_point("softmax"))
    gradients = one_pass(layers, torch.randn(1, N, D), BOTH)()
    assert [gradient.shape for gradient in gradients] == [weight.shape for weight in layers.parameters()]
    assert all(weight.grad is None for weight in layers.parameters())


@pytest.mark.parametrize(
    ("operator", "projections", "squared"),
    [("softmax", 4, 2), ("softmax-eager", 4, 2), ("softmax-sym", 3, 2), ("mssa", 2, 2), ("softmax-causal", 4, 2)],
)  # fmt: skip
def test_counted_operations_of_softmax_are_projections_and_two_products_of_all_pairs(
    operator, projections, squared
):
    expected = LAYERS * (projections * N * D**2 + squared * N**2 * D)
    assert forecast(_point(operator), FORWARD).macs == expected


def test_counted_operations_of_token_statistics_are_linear_in_tokens():
    for tokens in (N, 4 * N):
        # two projections, and the second moment of every feature
        expected = LAYERS * (2 * tokens * D**2 + tokens * D)
        assert forecast(_point("tssa", tokens=tokens), FORWARD).macs == expected


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_memory_forecast_from_shapes_is_that_of_the_tensors_of_a_run(operator, condition):
    point = _point(operator)
    expected = forecast(point, condition)
    layers, x = attention_layers(point), torch.randn(1, N, D)
    compute = one_pass(layers, x, condition)
    with Allocations() as seen:
        compute()
    assert expected.tensors == seen.peak
    assert expected.needed == seen.peak + x.nbytes + sum(weight.nbytes for weight in layers.parameters())


def test_a_forecast_takes_no_memory_and_half_precision_half_of_it():
    huge = Point("tokens", "softmax-eager", 8, 384, 2**20)
    expected = forecast(huge, FORWARD)
    assert expected.needed > 8 * (2**20) ** 2 * 4
    assert forecast(huge, FORWARD, torch.bfloat16).needed == pytest.approx(expected.needed / 2, rel=1e-3)


def test_the_sweeps_are_those_on_record():
    on_record = scaling_record()
    for name, rows in on_record.groupby("sweep"):
        sweep, (heads,) = SWEEPS[name], set(rows["heads"])
        other = "width" if sweep.axis == "tokens" else "tokens"
        assert (heads, set(rows[other])) == (sweep.heads, {sweep.fixed})
        assert set(rows[sweep.axis]) <= set(sweep.sizes)
    assert set(on_record["sweep"]) == set(SWEEPS)
    assert {name for sweep in SWEEPS.values() for name in sweep.operators} == set(OPERATORS)
    for name, sweep in SWEEPS.items():
        points = [sweep.point(name, sweep.operators[0], size) for size in sweep.sizes]
        assert [getattr(point, sweep.axis) for point in points] == list(sweep.sizes)
        assert all(point.width % point.heads == 0 for point in points)
        assert len({point.name for point in points}) == len(points)
