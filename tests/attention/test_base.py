"""The softmax over allowed keys, which the mechanisms share."""

import math

import torch

from workbench.attention.base import masked_softmax


def test_a_softmax_is_over_the_allowed_keys_of_each_query():
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 3, 5, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    mask = torch.rand(2, 1, 5, 4, generator=generator) < 0.6
    mask[1, 0, 2] = False  # a query that may attend to nothing
    weights = masked_softmax(scores, mask)
    for batch, head, query in torch.cartesian_prod(
        torch.arange(2), torch.arange(3), torch.arange(5)
    ).tolist():
        allowed = mask[batch, 0, query]
        powers = [
            math.exp(score) * ok
            for score, ok in zip(scores[batch, head, query].tolist(), allowed, strict=True)
        ]
        wanted = torch.tensor([float(power) / (sum(powers) or 1) for power in powers], dtype=torch.float64)
        torch.testing.assert_close(weights[batch, head, query], wanted)
    torch.testing.assert_close(masked_softmax(scores, None), masked_softmax(scores, torch.ones_like(mask)))
    (weights * torch.randn(weights.shape, generator=generator)).sum().backward()
    assert not scores.grad[1, :, 2].any()
    assert scores.grad.isfinite().all()
