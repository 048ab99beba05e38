"""Filters fitted to attention: the planted one is found, and what cannot be explained is not."""

import math

import pytest
import timm
import torch

import workbench
from tests.runs.test_analyze import bert, images, same, texts, vit
from workbench.analyses.filter_kernels import KERNELS, _fit_all, fit_filter, squared_distances, squares_left
from workbench.analyses.layer import grid_positions
from workbench.captures import capture
from workbench.core.errors import InputError, UnknownName
from workbench.runs.analyze import analyze

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


@pytest.mark.parametrize("causal", [False, True])
def test_derivatives_of_the_fit_are_those_of_its_differences(near, content, causal):
    """Central differences of Σ(A − K)², with the kernel written out row by row, and of its gradient."""
    alike = squared_distances(content[0])
    attn = torch.softmax(torch.randn(TOKENS, TOKENS, generator=torch.manual_seed(3)).double(), -1)
    visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    at, step = torch.tensor([-1.2, -2.5], dtype=torch.float64), 1e-4

    def by_hand(log_weights):
        h_p, h_y = torch.exp(-log_weights / 2).tolist()
        return (attn - kernel(near, alike, h_p, h_y, visible)).square().sum().item()

    def fitted(log_weights):
        return squares_left(log_weights, attn, visible, [near, alike])

    found = fitted(at)
    assert found.left.item() == pytest.approx(by_hand(at), rel=1e-12)
    for place in range(2):
        aside = step * torch.eye(2, dtype=torch.float64)[place]
        slope = (by_hand(at + aside) - by_hand(at - aside)) / (2 * step)
        assert found.slope[place].item() == pytest.approx(slope, rel=1e-5)
        curvature = (fitted(at + aside).slope - fitted(at - aside).slope) / (2 * step)
        torch.testing.assert_close(found.curvature[place], curvature, rtol=1e-6, atol=1e-9)


def test_matrices_are_fitted_together_as_they_are_alone(near, content):
    """Whatever their number, and whatever rows and keys each of them is without."""
    attn = torch.softmax(
        2 * torch.randn(5, HEADS, TOKENS, TOKENS, generator=torch.manual_seed(4)).double(), -1
    )
    attn[2, 1, 3:7] = 0
    visible = torch.rand(5, 1, TOKENS, TOKENS, generator=torch.manual_seed(5)) < 0.8
    visible[1, 0, 4] = False
    alike = squared_distances(content)
    for kernel_name in KERNELS:
        given = {"position": near, "content": alike}
        together = fit_filter(attn, kernel_name, **given, visible=visible)
        for place in range(5):
            for head in range(HEADS):
                alone = fit_filter(
                    attn[place, head],
                    kernel_name,
                    position=near,
                    content=alike[head],
                    visible=visible[place, 0],
                )
                for one, all_of_them in zip(alone, together, strict=True):
                    torch.testing.assert_close(
                        one, all_of_them[place, head], rtol=1e-6, atol=1e-9, equal_nan=True
                    )


def test_tokens_that_are_all_alike_leave_the_kernel_of_places_as_it_is(near, content):
    model = vit()
    for block in model.blocks:  # the patches, but for their places in the mask of distances, become one
        torch.nn.init.zeros_(block.norm1.weight)
    frame = analyze("filter-kernels", model=model, inputs=images(1), layers="0", null_samples=0)
    assert frame[frame["candidate"] == "nlm"]["value"].isna().all()
    found = fit_filter(kernel(near, near, 2.0), "gaussian", position=near)
    flat = {"position": near, "content": torch.zeros_like(near)}
    beside = _fit_all(
        kernel(near, near, 2.0), flat, {"gaussian": ("position",), "bilateral": ("position", "content")}, None
    )
    assert beside["gaussian"].share.item() == pytest.approx(found.share.item(), rel=1e-12)
    assert beside["gaussian"].position.item() == pytest.approx(2.0, rel=1e-6)
    assert beside["bilateral"].share.isnan()


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


MODEL_ROWS, MODEL_COLUMNS = 4, 4
METRICS = {"filter_share", "filter_position", "filter_content"}


def value(frame, metric, candidate, convention=None, **where):
    rows = frame[(frame["metric"] == metric) & (frame["candidate"] == candidate)]
    rows = rows[rows["convention"].isna() if convention is None else rows["convention"] == convention]
    for column, wanted in where.items():
        rows = rows[rows[column].isna() if wanted is None else rows[column] == wanted]
    assert len(rows) == 1
    return rows["value"].item()


def test_fits_are_to_the_patches_alone():
    model, batch = vit(), images(2)
    frame = analyze("filter-kernels", model=model, inputs=batch, null_samples=0, per_head=True, layers="1")
    (record,) = capture(model, batch, layers="1", sites=("attn", "input", "q", "k"))
    near = squared_distances(grid_positions((MODEL_ROWS, MODEL_COLUMNS)))
    for place in range(2):
        attn = record.attn[place, :, 1:, 1:].double()  # token 0 is the class token
        attn = attn / attn.sum(-1, keepdim=True)
        tokens = squared_distances(record.input[place, 1:])
        pairs = squared_distances(record.q[place, :, 1:], record.k[place, :, 1:])
        for content, distances in (("tokens", tokens), ("heads", pairs)):
            found = fit_filter(attn, "bilateral", position=near, content=distances)
            for head in range(len(attn)):
                here = {"input": str(place), "head": head}
                measured = value(frame, "filter_share", "bilateral", content, **here)
                assert measured == pytest.approx(found.share[head].item(), rel=1e-5)
                own = distances.expand(len(attn), -1, -1)[head]
                wanted = (found.content[head] / own.mean().sqrt()).item()
                wanted = math.nan if math.isinf(wanted) else wanted
                measured = value(frame, "filter_content", "bilateral", content, **here)
                assert measured == pytest.approx(wanted, rel=1e-4, nan_ok=True)
        gaussian = fit_filter(attn, "gaussian", position=near).share[1].item()
        measured = value(frame, "filter_share", "gaussian", input=str(place), head=1)
        assert measured == pytest.approx(gaussian, rel=1e-5)
    assert set(frame["metric"]) == METRICS
    assert set(frame.loc[frame["metric"] == "filter_position", "unit"]) == {"patches"}


def test_a_layer_that_is_a_filter_is_explained_by_it():
    """Keys of one length: the second projection is made orthogonal, tokens are normalised."""
    model = vit().double()
    for block in model.blocks:
        # q and k are one rotation of tokens that layer norm has given one length
        width = block.attn.qkv.in_features
        rotation = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64))[0]
        with torch.no_grad():
            block.norm1.weight.fill_(1)
            block.norm1.bias.fill_(0)
            block.attn.qkv.weight[:width] = block.attn.qkv.weight[width : 2 * width] = rotation
            block.attn.qkv.bias[: 2 * width] = 0
        block.attn.num_heads, block.attn.head_dim, block.attn.scale = 1, width, width**-0.5
    frame = analyze("filter-kernels", model=model, inputs=images(1).double(), null_samples=0)
    for content in ("tokens", "heads"):
        assert value(frame, "filter_share", "nlm", content, layer=None, input=None) == pytest.approx(
            1, abs=1e-4
        )


def test_text_lies_in_a_line_and_padding_is_left_out():
    model, batch = bert(), texts()
    whole = analyze("filter-kernels", model=model, inputs=batch, null_samples=0, per_head=True)
    alone = {name: tensor[1:2, :4] for name, tensor in batch.items()}
    short = analyze("filter-kernels", model=model, inputs=alone, null_samples=0, per_head=True)
    for layer in range(2):
        for kernel, content in (("gaussian", None), ("nlm", "tokens"), ("bilateral", "heads")):
            measured = [
                value(frame, "filter_share", kernel, content, layer=layer, head=2, input=name)
                for frame, name in ((whole, "1"), (short, "0"))
            ]
            assert measured[0] == pytest.approx(measured[1], abs=1e-4)
    assert set(whole.loc[whole["metric"] == "filter_position", "unit"]) == {"tokens"}


def test_chance_permutes_the_tokens_and_batches_do_not_matter():
    model = vit()
    frames = [
        analyze(
            "filter-kernels",
            model=model,
            inputs=images(3),
            layers="0",
            content="heads",
            null_samples=3,
            batch_size=size,
        )
        for size in (3, 1)
    ]
    same(*frames, rtol=1e-3)
    shares = frames[0][frames[0]["metric"] == "filter_share"]
    assert set(shares["null"]) == {"permutation"}
    assert (shares["null_mean"] >= 0).all()
    overall = shares[shares["input"].isna() & shares["layer"].isna() & (shares["candidate"] == "nlm")]
    assert overall["value"].item() > overall["null_high"].item()


def test_layers_without_weights_from_token_to_token_are_refused_with_the_reason():
    for name, reason in (
        ("xca", "attends from channel to channel"),
        ("tssa", "without attention from token to token"),
    ):
        model = vit()
        workbench.replace_attention(model, name)
        with pytest.raises(InputError, match=f"nothing to measure; layers 0-2 left out: .*{reason}"):
            analyze("filter-kernels", model=model, inputs=images(1))


def test_a_sequence_of_one_token_is_refused():
    torch.manual_seed(0)
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=4, patch_size=4, embed_dim=8, depth=1, num_heads=2, num_classes=3
    ).eval()
    with pytest.raises(InputError, match="a single token with a place"):
        analyze("filter-kernels", model=model, inputs=torch.randn(2, 3, 4, 4))


def test_windows_are_fitted_one_by_one():
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, window_size=7, depths=(1, 1, 1, 1), num_classes=2
    ).eval()
    batch = torch.randn(1, 3, 56, 56, generator=torch.manual_seed(0))
    frame = analyze("filter-kernels", model=model, inputs=batch, layers="0", content="tokens", null_samples=0)
    share = value(frame, "filter_share", "bilateral", "tokens", layer=None, input=None)
    assert 0 <= share <= 1
    assert math.isfinite(share)


def test_a_weight_that_falls_by_more_than_a_percent_has_a_bandwidth(near):
    mean = float(near.mean())
    for share, finite in ((0.02, True), (0.005, False)):
        attn = kernel(near, torch.zeros_like(near), math.sqrt(mean / share))
        assert math.isfinite(fit_filter(attn, "gaussian", position=near).position) is finite
