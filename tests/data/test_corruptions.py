import numpy as np
import pytest

from workbench.core.errors import InputError, UnknownName
from workbench.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt


def _image(height, width, channels, seed=0):
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [0.5 + 0.4 * np.sin((x * a + y * b) / 3 + c) for a, b, c in rng.uniform(0.5, 2, (channels, 3))]
    return np.stack(waves, axis=2).astype(np.float32)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(16, 16, 1), (17, 24, 3)])
def test_a_corruption_keeps_shape_type_and_range(name, shape):
    image = _image(*shape)
    for severity in SEVERITIES:
        changed = corrupt(image, name, severity, np.random.default_rng(1))
        assert changed.shape == shape
        assert changed.dtype == image.dtype
        assert 0 <= changed.min() <= changed.max() <= 1


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_higher_severity_changes_more(name):
    images = [_image(16, 16, 1, seed) for seed in range(12)]
    change = [
        np.mean([np.abs(corrupt(p, name, level, np.random.default_rng(i)) - p).mean() for i, p in enumerate(images)])
        for level in SEVERITIES
    ]  # fmt: skip
    assert change[0] > 1e-3
    assert change == sorted(change)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_same_seed_gives_the_same_image(name):
    image = _image(12, 16, 3)
    first, again = (corrupt(image, name, 3, np.random.default_rng(7)) for _ in range(2))
    assert np.array_equal(first, again)


@pytest.mark.parametrize("name", ["defocus-blur", "motion-blur", "zoom-blur", "glass-blur", "elastic-transform",
                                  "pixelate", "contrast"])  # fmt: skip
def test_what_only_moves_or_mixes_pixels_leaves_a_flat_image(name):
    flat = np.full((16, 18, 1), 0.3, dtype=np.float32)
    assert np.allclose(corrupt(flat, name, 5, np.random.default_rng(0)), flat, atol=1e-6)


def test_noise_has_the_stated_strength():
    grey = np.full((200, 210, 1), 0.5, dtype=np.float64)
    rng = np.random.default_rng(0)
    assert (corrupt(grey, "gaussian-noise", 1, rng) - grey).std() == pytest.approx(0.08, rel=0.03)
    assert (corrupt(grey, "shot-noise", 2, rng) - grey).std() == pytest.approx((0.5 / 25) ** 0.5, rel=0.03)
    assert (corrupt(grey, "impulse-noise", 5, rng) != grey).mean() == pytest.approx(0.27, rel=0.05)


def test_brightness_keeps_the_hue():
    image = _image(8, 9, 3) * 0.5 + 0.05
    changed = corrupt(image, "brightness", 2, np.random.default_rng(0))
    assert np.allclose(changed.max(2), image.max(2) + 0.2, atol=1e-6)
    assert np.allclose(
        changed / changed.max(2, keepdims=True), image / image.max(2, keepdims=True), atol=1e-5
    )


def test_unknown_types_and_severities_are_named():
    image = _image(4, 4, 1)
    with pytest.raises(UnknownName, match="fog"):
        corrupt(image, "fogg", 1, np.random.default_rng(0))
    with pytest.raises(InputError, match="1 to 5"):
        corrupt(image, "fog", 6, np.random.default_rng(0))
