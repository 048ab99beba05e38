"""Filters fitted to attention: the planted one is found, and what cannot be explained is not."""

import math

import pytest
import torch

from workbench.analyses.filter_kernels import KERNELS, fit_filter, squared_distances
from workbench.analyses.layer import grid_positions
from workbench.core.errors import InputError, UnknownName

HEADS, ROWS, COLUMNS, WIDTH = 3, 4, 5, 6
TOKENS = ROWS * COLUMNS


@pytest.fixture
def near():
    return squared_distances(grid_positions((ROWS, COLUMNS)))


@pytest.fixture
def content():
    return torch.randn(HEADS, TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def kernel(near, alike, h_p=math.inf, h_y=math.inf, visible=None):
    """Row by row, as the formula has it."""
    rows = []
    for i in range(near.shape[0]):
        weights = [
            math.exp(-near[i, j] / h_p**2 - alike[i, j] / h_y**2) if visible is None or visible[i, j] else 0.0
            for j in range(near.shape[1])
        ]
        rows.append([weight / sum(weights) for weight in weights])
    return torch.tensor(rows, dtype=torch.float64)


def close(value, expected, rel=1e-4):
    assert value.tolist() == pytest.approx(expected, rel=rel)


def test_the_fitted_filter_is_the_planted_one(near, content):
    alike = squared_distances(content)
    planted = [(2.0, 3.0), (0.9, 5.0), (6.0, 1.5)]
    both = torch.stack([kernel(near, alike[head], *h) for head, h in enumerate(planted)])
    found = fit_filter(both, "bilateral", position=near, content=alike)
    close(found.share, [1.0] * HEADS, 1e-8)
    close(found.position, [h_p for h_p, _ in planted])
    close(found.content, [h_y for _, h_y in planted])
    gaussian = torch.stack([kernel(near, alike[head], h_p) for head, (h_p, _) in enumerate(planted)])
    found = fit_filter(gaussian, "gaussian", position=near)
    close(found.share, [1.0] * HEADS, 1e-8)
    close(found.position, [h_p for h_p, _ in planted])
    assert found.content.isnan().all()
    nlm = torch.stack([kernel(near, alike[head], math.inf, h_y) for head, (_, h_y) in enumerate(planted)])
    found = fit_filter(nlm, "nlm", content=alike)
    close(found.content, [h_y for _, h_y in planted])
    assert found.position.isnan().all()


def test_attention_with_keys_of_one_length_is_non_local_means(near, content):
    """Prop. III.2: then exp(s q·k) in a row is exp(−‖q − k‖²/h²) with h² = 2/s, and with other keys it is not."""
    q, k = content, torch.nn.functional.normalize(content.flip(-2), dim=-1)
    scale = WIDTH**-0.5
    found = fit_filter(torch.softmax(scale * q @ k.mT, -1), "nlm", content=squared_distances(q, k))
    close(found.share, [1.0] * HEADS, 1e-8)
    close(found.content, [math.sqrt(2 / scale)] * HEADS)
    uneven = k * torch.linspace(0.2, 5, TOKENS, dtype=torch.float64)[:, None]
    found = fit_filter(torch.softmax(scale * q @ uneven.mT, -1), "nlm", content=squared_distances(q, uneven))
    assert (found.share < 0.5).all()


def test_the_share_is_one_less_what_the_best_kernel_leaves(near, content):
    """Of a grid of bandwidths none leaves less; and the bilateral filter is no worse than either half of it."""
    attn = torch.softmax(
        2 * torch.randn(TOKENS, TOKENS, dtype=torch.float64, generator=torch.manual_seed(3)), -1
    )
    attn = 0.5 * attn + 0.5 * kernel(near, squared_distances(content[0]), 1.7, 4.0)
    alike = squared_distances(content[0])
    total = (attn - 1 / TOKENS).square().sum().item()
    grid = [0.4 * 1.5**step for step in range(9)]
    least = {
        "gaussian": min((attn - kernel(near, alike, h)).square().sum().item() for h in grid),
        "nlm": min((attn - kernel(near, alike, math.inf, h)).square().sum().item() for h in grid),
        "bilateral": min(
            (attn - kernel(near, alike, h, g)).square().sum().item() for h in grid for g in grid
        ),
    }
    share = {name: fit_filter(attn, name, position=near, content=alike).share.item() for name in KERNELS}
    for name, left in least.items():
        assert share[name] >= 1 - left / total - 1e-9
        assert share[name] < 1 - 0.8 * left / total
    assert share["bilateral"] >= max(share["gaussian"], share["nlm"])


def test_what_does_not_depend_on_the_tokens_is_not_explained(near, content):
    alike = squared_distances(content)
    noise = torch.softmax(
        torch.randn(HEADS, TOKENS, TOKENS, dtype=torch.float64, generator=torch.manual_seed(1)), -1
    )
    assert (fit_filter(noise, "bilateral", position=near, content=alike).share < 0.05).all()
    one_key = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    one_key[:, 7] = 1  # a sink: no row falls with a distance
    found = fit_filter(one_key, "gaussian", position=near)
    assert found.share < 0.05
    itself = fit_filter(torch.eye(TOKENS, dtype=torch.float64), "gaussian", position=near)
    assert itself.share > 0.999
    assert itself.position < 0.5
    even = fit_filter(torch.full((TOKENS, TOKENS), 1 / TOKENS), "gaussian", position=near)
    assert even.share.isnan()  # nothing varies


def test_a_kernel_that_does_not_fall_with_a_distance_has_no_bandwidth_for_it(near, content):
    alike = squared_distances(content[0])
    found = fit_filter(kernel(near, alike, 1.5), "bilateral", position=near, content=alike)
    close(found.position[None], [1.5])
    assert found.content == math.inf


def test_masks_leave_keys_out_of_the_kernel_too(near, content):
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    alike = squared_distances(content[0])
    attn = kernel(near, alike, 2.0, 3.0, causal)
    found = fit_filter(attn, "bilateral", position=near, content=alike, visible=causal)
    close(found.share[None], [1.0], 1e-8)
    close(found.position[None], [2.0])
    assert fit_filter(attn, "bilateral", position=near, content=alike).share < 0.99
    # what rows lost to a class token that was left out does not matter, nor a query that attends to nothing
    scaled = attn * torch.linspace(0.1, 1, TOKENS, dtype=torch.float64)[:, None]
    scaled[4] = 0
    again = fit_filter(scaled, "bilateral", position=near, content=alike, visible=causal)
    close(again.content[None], [3.0])


def test_permuted_tokens_give_the_same_fit_where_all_are_permuted(near, content):
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(2))
    alike = squared_distances(content[1])
    attn = 0.7 * kernel(near, alike, 2.0, 3.0) + 0.3 / TOKENS
    one = fit_filter(attn, "bilateral", position=near, content=alike)
    there = {"position": near[order][:, order], "content": alike[order][:, order]}
    two = fit_filter(attn[order][:, order], "bilateral", **there)
    close(two.share[None], [one.share.item()], 1e-6)
    moved = fit_filter(attn, "bilateral", **there)
    assert moved.share < 0.5 * one.share  # what each token gives itself stays in its place


def test_requests_that_cannot_be(near):
    attn = torch.softmax(torch.randn(2, TOKENS, TOKENS), -1)
    with pytest.raises(UnknownName, match="bilateral"):
        fit_filter(attn, "bilatral", position=near)
    with pytest.raises(InputError, match="falls with the distance of contents; give content"):
        fit_filter(attn, "bilateral", position=near)
    with pytest.raises(InputError, match="does not fit attention"):
        fit_filter(attn, "gaussian", position=near[:3, :3])
    with pytest.raises(InputError, match="has 1 token; at least 2"):
        fit_filter(torch.ones(2, 1, 1), "gaussian", position=torch.zeros(1, 1))
    attn[1, 2, 3] = math.nan
    with pytest.raises(InputError, match="batch 1, query 2, key 3"):
        fit_filter(attn, "gaussian", position=near)
