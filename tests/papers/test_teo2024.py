"""What docs/papers/teo2024.md measures on bundled models without a record: Remark 3, and the sparse part of RPC."""

from pathlib import Path

import pytest
import torch

import workbench
from workbench.attention.rpc import RPCAttention, rpc_attention
from workbench.attention.scaled import exact_scaling, scaled_attention
from workbench.attention.softmax import softmax_attention

N = 25


@pytest.fixture(scope="module")
def page():
    text = (Path(__file__).parents[2] / "docs" / "papers" / "teo2024.md").read_text(encoding="utf-8")
    return " ".join(text.split())


def exact_s(checkpoint):
    """Relative change of the outputs by the exact S, of every head and image, and the largest entry of N S."""
    model = workbench.load("bundled:digits-vit", checkpoint=checkpoint)
    changes, largest = [], 0.0
    for layer in workbench.capture(model, workbench.inputs("bundled:digits", model, n=N)).layers:
        q, k, v = (operand.double() for operand in (layer.q, layer.k, layer.v))
        s = exact_scaling(k, scale=layer.scale)
        plain = softmax_attention(q, k, v, scale=layer.scale)
        change = plain - scaled_attention(q, k, v, s, scale=layer.scale)
        changes.append((change.norm(dim=(-2, -1)) / plain.norm(dim=(-2, -1))).flatten())
        largest = max(largest, float(s.max()) * s.shape[-1])
    return torch.cat(changes), largest


def test_the_exact_s_changes_a_trained_model(page):
    changes, largest = exact_s(None)
    assert len(changes) == 12 * N
    assert f"by {changes.median():.2f} times their own norm (median of {N} images and 12 heads; " in page
    assert f"the least is {changes.min():.2f})" in page
    untrained, almost_one = exact_s("epoch-000")
    assert f"the median is {untrained.median():.2f}: there g is almost constant" in page
    assert almost_one < 1.1
    assert "N S is {}·10⁵".format(f"{largest / 1e5:.1f}") in page


def test_the_sparse_part_of_the_bundled_model_is_small(page):
    model = workbench.load("bundled:digits-rpc-sym")
    inputs = workbench.inputs("bundled:digits", model, n=N)
    (robust,) = (part for part in model.module.modules() if getattr(part, "num_iter", 0))
    assert isinstance(robust, RPCAttention)
    seen = []
    hook = robust.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    workbench.capture(model, inputs)
    hook.remove()
    k, v = (operand.double() for operand in robust.project(torch.cat(seen)))

    def share(**options):
        parts = rpc_attention(k, v, scale=robust.scale, lambd=robust.lambd, details=True, **options)
        return float((parts.sparse != 0).double().mean())

    fourth, first = share(num_iter=4), share(num_iter=1)
    assert first == 0
    assert f"on {N} images {100 * fourth:.1f} % of the entries of S are not 0 in the fourth step" in page
    assert f"it is {100 * share(num_iter=4, convention='as_implemented'):.2f} %" in page
