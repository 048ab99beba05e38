"""Principal components of patches: NumPy's decomposition, masks by loops, and bright ink found."""

import numpy as np
import pytest
import torch

import workbench
from tests.runs.test_analyze import bert, images, texts, vit
from workbench.analyses.patch_pca import mask_iou, mass_mask, patch_components
from workbench.captures import capture
from workbench.core.errors import InputError


def decomposed(patches, count):
    """Scores of the first components by NumPy's singular value decomposition, the longer tail positive."""
    flat = patches.double().flatten(0, 1).numpy()
    flat = flat - flat.mean(0)
    left, values, _ = np.linalg.svd(flat, full_matrices=False)
    scores = left[:, :count] * values[:count]
    scores *= np.sign((scores**3).sum(0))
    return scores.reshape(*patches.shape[:2], -1), flat.reshape(patches.shape)


def test_components_are_those_of_a_singular_value_decomposition():
    patches = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([4, 3, 2, 1.0])
    expected, centred = decomposed(patches, 2)
    found = patch_components(patches, 2)
    np.testing.assert_allclose(found.scores, expected, rtol=1e-10, atol=1e-10)
    shares = (expected**2).sum(1) / (centred**2).sum((1, 2))[:, None]
    np.testing.assert_allclose(found.shares, shares, rtol=1e-10)
    whole = patch_components(patches, 6)
    assert whole.shares.shape == (3, 6)
    np.testing.assert_allclose(whole.shares.sum(1), 1)
    assert (whole.scores[..., 4:] == 0).all()


def test_a_mirrored_basis_does_not_change_the_signs():
    patches = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(1)).exp()
    flip = torch.tensor([-1.0, 1, -1])
    torch.testing.assert_close(patch_components(patches * flip, 3), patch_components(patches, 3))


def test_mass_masks_and_their_overlap_by_loops():
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(4, 7, generator=generator)
    foreground = torch.rand(4, 7, generator=generator) > 0.5
    foreground[:, 0], foreground[:, 1] = True, False
    masks = mass_mask(weights, 0.6)
    for row, mask, truth in zip(weights.tolist(), masks.tolist(), foreground.tolist(), strict=True):
        total, held, chosen = sum(max(value, 0) for value in row), 0.0, set()
        for place in sorted(range(7), key=lambda place: -row[place]):
            if held < 0.6 * total:
                held, chosen = held + max(row[place], 0), chosen | {place}
        assert {place for place in range(7) if mask[place]} == chosen
        true = {place for place in range(7) if truth[place]}
        overlap = mask_iou(torch.tensor(mask), torch.tensor(truth)).item()
        assert overlap == pytest.approx(len(chosen & true) / len(chosen | true))
    assert not mass_mask(-torch.rand(7), 0.6).any()
    assert mask_iou(masks[0], torch.ones(7, dtype=torch.bool)).isnan()


@pytest.mark.parametrize("site", ["resid_post", "k"])
def test_rows_are_components_of_the_captured_patches(site):
    model, batch = vit(), images()
    rows = workbench.analyze("patch-pca", model, batch, layers=[1], site=site, components=2, per="token")
    captured = getattr(capture(model, batch, layers=[1], sites=(site,))[1], site)
    tokens = captured if site == "resid_post" else captured.transpose(1, 2).flatten(2)
    expected, centred = decomposed(tokens[:, 1:], 2)  # without the class token
    found = rows.pivot_table("value", ["input", "token"], "component").to_numpy().reshape(5, 16, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * abs(expected).max())
    frame = workbench.analyze("patch-pca", model, batch, layers=[1], site=site, components=2)
    shares = frame[frame["metric"] == "patch_pca_share"].pivot_table("value", "input", "rank")
    np.testing.assert_allclose(shares, (expected**2).sum(1) / (centred**2).sum((1, 2))[:, None], rtol=1e-4)
    first = frame[frame["rank"] == 1]
    assert first["null_mean"].mean() < first["value"].mean()


def test_the_mask_of_ink_fits_better_than_random_masks_of_its_size():
    options = {"masks": "ink", "null_samples": 200, "layers": [0], "n": 6, "components": 1}
    frame = workbench.analyze("patch-pca", "bundled:digits-vit", "bundled:digits", **options)
    overlap = frame[frame["metric"] == "patch_pca_iou"]
    assert (overlap["value"] > overlap["null_high"]).mean() > 0.8
    model = workbench.load("bundled:digits-vit")
    digits = workbench.inputs("bundled:digits", model, n=6)
    tokens = workbench.capture(model, digits, layers=[0], sites=["resid_post"])[0].resid_post[:, 1:]
    masks = mass_mask(torch.from_numpy(decomposed(tokens, 1)[0][..., 0]), 0.6)
    rng = np.random.default_rng(0)
    for row, mask, image in zip(overlap.itertuples(), masks.numpy(), digits.images, strict=True):
        ink = image.mean(-1).reshape(8, 2, 8, 2).mean((1, 3)).flatten() > 127.5
        assert row.value == pytest.approx((mask & ink).sum() / (mask | ink).sum())
        drawn = [(rng.permutation(mask), ink) for _ in range(2000)]
        chance = np.mean([(other & ink).sum() / (other | ink).sum() for other, ink in drawn])
        assert row.null_mean == pytest.approx(chance, abs=0.02)
    first, second = workbench.findings(frame)
    assert "of the variance" in first
    assert "random masks of the same size" in second


def test_a_basis_is_joint_over_the_images_of_a_batch_and_the_frame_says_so():
    model, batch = vit(), images()
    whole = workbench.analyze("patch-pca", model, batch, layers=[1])
    alone = workbench.analyze("patch-pca", model, batch, layers=[1], batch_size=1)
    assert not np.allclose(whole["value"], alone["value"])
    for frame in (whole, alone):
        assert any(
            "5 of 5 images" in note and "joint over the images" in note for note in frame.attrs["notes"]
        )


def test_texts_have_no_patches():
    with pytest.raises(InputError, match="no patch grid: the tokens are"):
        workbench.analyze("patch-pca", bert(), texts())
