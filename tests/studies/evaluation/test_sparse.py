"""Sparse L1 descent: its budget, where it goes, and the projection onto the budget."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

from workbench.studies.evaluation.sparse import sparse_l1_descent, to_l1_ball


def test_the_projection_is_the_nearest_point_of_the_budget():
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(5, 4))
    found = to_l1_ball(torch.from_numpy(rows), 1.5)
    for row, near in zip(rows, found.numpy(), strict=True):
        assert np.abs(near).sum() <= 1.5 + 1e-12
        # as a problem of non-negative parts, which a solver of smooth problems takes
        signs = np.eye(4)
        both = np.hstack([signs, -signs])
        best = minimize(
            lambda parts, row=row, both=both: ((both @ parts - row) ** 2).sum(),
            np.full(8, 0.1),
            bounds=[(0, None)] * 8,
            constraints={"type": "ineq", "fun": lambda parts: 1.5 - parts.sum()},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert near == pytest.approx(both @ best.x, abs=1e-4)
    inside = torch.tensor([[0.2, -0.3, 0.0]])
    assert torch.equal(to_l1_ball(inside, 0.6), inside)


class Linear(nn.Module):
    """Two classes; the second gains by the weights."""

    def __init__(self, weights):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(weights))

    def forward(self, pixels):
        score = pixels.flatten(1) @ self.weights
        return torch.stack([torch.zeros_like(score), score], 1)


def test_of_a_linear_model_the_budget_goes_to_the_largest_weight_that_has_room():
    model = Linear([0.1, -2.0, 1.5, 0.3, 3.0, -0.2])
    pixels = torch.tensor([0.5, 0.5, 0.5, 0.5, 1.0, 0.5]).view(1, 1, 2, 3)  # the largest weight's has none
    found = sparse_l1_descent(model, pixels, torch.tensor([0]), 0.25, steps=10, changed=1 / 6)
    change = (found - pixels).flatten()
    assert change[1] == pytest.approx(-0.25, abs=1e-6)
    assert change[[0, 2, 3, 4, 5]].abs().max() < 1e-6
    wide = sparse_l1_descent(model, pixels, torch.tensor([0]), 2.0, steps=40, changed=1 / 6)
    assert (wide - pixels).abs().sum() <= 2 + 1e-5
    assert wide.min() >= 0
    assert wide.max() <= 1
    assert wide.flatten()[1] < 1e-6
    assert wide.flatten()[2] > 0.9


def test_a_batch_is_attacked_as_its_images_are_alone():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 3))
    pixels, targets = torch.rand(5, 1, 3, 4), torch.tensor([0, 1, 2, 1, 0])
    together = sparse_l1_descent(model, pixels, targets, 0.8, changed=0.2)
    for number in range(5):
        one = slice(number, number + 1)
        alone = sparse_l1_descent(model, pixels[one], targets[one], 0.8, changed=0.2)
        torch.testing.assert_close(together[one], alone)
    loss = nn.functional.cross_entropy
    before, after = (loss(model(images), targets, reduction="none") for images in (pixels, together))
    assert (after > before).all()
