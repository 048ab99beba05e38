import numpy as np
import pytest

from workbench.core.errors import InputError, UnknownName
from workbench.data.corruptions import CORRUPTIONS, SEVERITIES, WEATHER, corrupt, corruptions_of


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


@pytest.mark.parametrize("name", ["defocus-blur", "motion-blur", "zoom-blur"])
def test_a_blur_spreads_a_point_as_far_to_one_side_as_to_the_other(name):
    point = np.zeros((21, 25, 1), dtype=np.float32)
    point[10, 12] = 1
    for severity in SEVERITIES:
        spread = corrupt(point, name, severity, np.random.default_rng(1))
        np.testing.assert_allclose(spread, spread[::-1, ::-1], atol=1e-6)
        assert np.count_nonzero(spread) > 1


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


@pytest.mark.parametrize("name", WEATHER)
@pytest.mark.parametrize("shape", [(64, 70, 1), (91, 64, 3)])
def test_weather_keeps_shape_type_and_range_and_follows_the_seed(name, shape):
    image = _image(*shape)
    for severity in SEVERITIES:
        first, again, other = (
            corrupt(image, name, severity, np.random.default_rng(seed)) for seed in (1, 1, 2)
        )
        assert first.shape == shape
        assert first.dtype == image.dtype
        assert 0 <= first.min() <= first.max() <= 1
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)


def test_snow_whitens_and_frost_is_bluish_with_less_of_the_image_behind():
    black = np.zeros((80, 96, 3), dtype=np.float64)
    snow = [
        np.mean([corrupt(black, "snow", level, np.random.default_rng(i)) for i in range(3)])
        for level in SEVERITIES
    ]
    assert snow[0] < snow[1] < snow[2] < snow[4]
    assert min(snow) > 0.1  # half of what is kept of the image becomes grey
    fallen = corrupt(black, "snow", 3, np.random.default_rng(0))
    assert np.allclose(fallen, fallen.mean(axis=2, keepdims=True))
    ice = corrupt(black, "frost", 5, np.random.default_rng(0))
    lit = ice[..., 2] > 0.01
    assert np.allclose(ice[lit][:, 0] / ice[lit][:, 2], 0.82)
    white = np.ones((80, 96, 1), dtype=np.float64)
    for level, kept in zip(SEVERITIES, (1.0, 0.8, 0.7, 0.65, 0.6), strict=True):
        assert corrupt(white, "frost", level, np.random.default_rng(0)).min() >= kept


def test_weather_is_for_images_of_64_pixels():
    assert corruptions_of(63, 90) == tuple(CORRUPTIONS)
    assert corruptions_of(90, 64) == (*CORRUPTIONS, "snow", "frost")
    with pytest.raises(InputError, match=r"snow is drawn on images of 64 pixels and more, got 63 × 90"):
        corrupt(_image(63, 90, 1), "snow", 1, np.random.default_rng(0))
    with pytest.raises(UnknownName, match="did you mean 'frost'"):
        corrupt(_image(64, 64, 1), "frosty", 1, np.random.default_rng(0))


def test_unknown_types_and_severities_are_named():
    image = _image(4, 4, 1)
    with pytest.raises(UnknownName, match="fog"):
        corrupt(image, "fogg", 1, np.random.default_rng(0))
    with pytest.raises(InputError, match="1 to 5"):
        corrupt(image, "fog", 6, np.random.default_rng(0))
