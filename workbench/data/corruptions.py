"""Common corruptions of small images in five severities, after ImageNet-C (Hendrycks & Dietterich 2019).

Thirteen of its fifteen types, and snow and frost where the shorter side has 64 pixels or more: they are images of
weather, which sixteen pixels cannot show. Strengths of
noise, contrast, brightness and pixelation are the published ones. Lengths are shares of the image's shorter side, and
they, the zoom and the compression are stronger than published: a blur of 1 % of the side changes a photograph and
leaves a digit as it is. Snow and frost are drawn at the published 224 pixels and made as large as the image: snow as
published; frost is ice that is drawn here, where the published one has photographs of it.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw
from scipy import ndimage

from workbench.core.errors import InputError, UnknownName

ImageArray = Float[np.ndarray, "height width channel"]
Corruption = Callable[[ImageArray, int, np.random.Generator], ImageArray]
SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(image: ImageArray, name: str, severity: int, rng: np.random.Generator) -> ImageArray:
    """Corrupt `image` (values in [0, 1]) by the corruption `name` at `severity` 1 to 5; values stay in [0, 1].

    Raises UnknownName for a type that does not exist, InputError for another severity, and for weather on an image
    whose shorter side is below `WEATHER_SIDE` pixels.
    """
    if name not in CORRUPTIONS and name not in WEATHER:
        raise UnknownName("corruption", name, (*CORRUPTIONS, *WEATHER))
    if severity not in SEVERITIES:
        raise InputError(f"severities of a corruption are 1 to 5, got {severity!r}")
    if name in WEATHER and _side(image) < WEATHER_SIDE:
        raise InputError(
            f"{name} is drawn on images of {WEATHER_SIDE} pixels and more, got {image.shape[0]} × {image.shape[1]}; "
            f"smaller ones have {', '.join(CORRUPTIONS)}"
        )
    changed = (CORRUPTIONS | WEATHER)[name](image.astype(np.float64), severity - 1, rng)
    return np.clip(changed, 0, 1).astype(image.dtype)


def corruptions_of(height: int, width: int) -> tuple[str, ...]:
    """List the corruptions for images of this size: snow and frost need `WEATHER_SIDE` pixels or more."""
    return (*CORRUPTIONS, *(WEATHER if min(height, width) >= WEATHER_SIDE else ()))


def _gaussian_noise(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    return image + rng.normal(size=image.shape) * (0.08, 0.12, 0.18, 0.26, 0.38)[level]


def _shot_noise(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    photons = (60, 25, 12, 5, 3)[level]
    return rng.poisson(image * photons) / photons


def _impulse_noise(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[level]
    struck = rng.random(image.shape) < share
    return np.where(struck, rng.integers(0, 2, image.shape), image)


def _defocus_blur(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    """Average over a disc whose edge falls off within one pixel."""
    radius = _side(image) * (0.06, 0.09, 0.12, 0.16, 0.2)[level]
    reach = int(radius) + 1
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disc = np.clip(radius + 1 - np.hypot(y, x), 0, 1)
    return ndimage.convolve(image, (disc / disc.sum())[:, :, None], mode="nearest")


def _glass_blur(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    """Replace each pixel by a random neighbour, between two slight blurs."""
    reach = _side(image) * (0.03, 0.045, 0.06, 0.075, 0.09)[level]
    sigma = (reach / 4, reach / 4, 0)
    moved = _displaced(
        ndimage.gaussian_filter(image, sigma), rng.uniform(-reach, reach, (2, *image.shape[:2]))
    )
    return ndimage.gaussian_filter(moved, sigma)


def _motion_blur(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    """Average along a line in a random direction."""
    length = _side(image) * (0.2, 0.3, 0.4, 0.5, 0.6)[level]
    angle = rng.uniform(0, np.pi)
    steps = np.linspace(-length / 2, length / 2, 2 * int(np.ceil(length)) + 1)
    shifts = [(step * np.sin(angle), step * np.cos(angle), 0) for step in steps]
    return np.mean([ndimage.shift(image, shift, order=1, mode="nearest") for shift in shifts], axis=0)


def _zoom_blur(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    """Average over enlargements about the centre."""
    largest = (1.3, 1.6, 1.9, 2.2, 2.5)[level]
    centre = (np.array(image.shape[:2]) - 1) / 2
    views = [
        ndimage.affine_transform(
            image,
            np.array([1 / zoom, 1 / zoom, 1]),
            offset=np.append(centre * (1 - 1 / zoom), 0),
            order=1,
            mode="nearest",
        )
        for zoom in np.linspace(1, largest, 9)
    ]
    return np.mean(views, axis=0)


def _fog(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    """Add a cloud with a falling spectrum, and scale the sum to the brightest pixel."""
    strength, decay = ((0.5, 2.0), (0.75, 2.0), (1.0, 1.8), (1.5, 1.6), (2.0, 1.5))[level]
    height, width = image.shape[:2]
    cloud = _cloud(height, width, decay, rng)
    brightest = image.max()
    return (image + strength * cloud[:, :, None]) * brightest / (brightest + strength)


def _snow(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    """Add flakes (high values of blurred noise, stretched along their fall), and whiten the background."""
    mean, size, least, length, sigma, kept = (
        (0.1, 3.0, 0.5, 10, 4, 0.8),
        (0.2, 2.0, 0.5, 12, 4, 0.7),
        (0.55, 4.0, 0.9, 12, 8, 0.7),
        (0.55, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 2.5, 0.85, 12, 12, 0.55),
    )[level]
    height, width = _published_size(image)
    noise = rng.normal(mean, 0.3, (int(height / size) + 2, int(width / size) + 2))
    flakes = ndimage.zoom(noise, size, order=1)[:height, :width]
    flakes = np.where(flakes < least, 0, flakes.clip(0, 1))
    angle = rng.uniform(0.25 * np.pi, 0.75 * np.pi)
    steps = np.arange(2 * length + 1)
    weights = np.exp(-((steps / sigma) ** 2) / 2)
    fallen = sum(
        weight * ndimage.shift(flakes, (step * np.sin(angle), step * np.cos(angle)), order=1, mode="nearest")
        for step, weight in zip(steps, weights / weights.sum(), strict=True)
    )
    snow = _resized(fallen + fallen[::-1, ::-1], image)
    grey = image @ _LUMA if image.shape[2] == 3 else image.mean(axis=2)
    whiter = np.maximum(image, grey[:, :, None] * 1.5 + 0.5)
    return kept * image + (1 - kept) * whiter + snow[:, :, None]


def _frost(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    """Blend the darkened image with a sheet of ice, in the published proportions."""
    kept, share = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))[level]
    ice = _resized(_fern_frost(*_published_size(image), rng), image)[:, :, None] * _ICE
    return kept * image + share * (ice if image.shape[2] == 3 else ice.mean(axis=2, keepdims=True))


def _fern_frost(height: int, width: int, rng: np.random.Generator) -> Float[np.ndarray, "height width"]:
    """Draw ice from 0 (clear) to 1 (white): needles of three lengths that branch at 60°, thicker in some parts."""
    tall, wide = 2 * height, 2 * width
    ice = np.zeros((height, width))
    for share, count, orders, weight in ((0.8, 7, 2, 1.0), (0.4, 20, 2, 0.8), (0.15, 60, 1, 0.6)):
        drawn = Image.new("L", (wide, tall))
        pen = ImageDraw.Draw(drawn)
        for _ in range(round(count * height * width / _PUBLISHED_SIDE**2)):
            start = rng.uniform(0, wide), rng.uniform(0, tall)
            length = min(tall, wide) * share * rng.uniform(0.6, 1.2)
            _grow(pen, start, rng.uniform(0, 2 * np.pi), length, orders, rng)
        layer = np.asarray(drawn, np.float64).reshape(height, 2, width, 2).mean(axis=(1, 3)) / 255
        ice = np.maximum(ice, weight * layer)
    near, far = (ndimage.gaussian_filter(ice, sigma) for sigma in (1.8, 6.7))
    thick = 0.2 + 0.9 * _cloud(height, width, 2.0, rng)
    grain = 0.85 + 0.3 * _cloud(height, width, 0.5, rng)
    return (thick * grain * (0.1 + 1.1 * ice + 0.35 * near + 0.45 * far)).clip(0, 1)


def _grow(
    pen: ImageDraw.ImageDraw,
    start: tuple[float, float],
    angle: float,
    length: float,
    orders: int,
    rng: np.random.Generator,
) -> None:
    """Draw a needle (x, y; pixels) with branches on both sides, shorter towards its tip."""
    x, y = start
    right, down = np.cos(angle), np.sin(angle)
    pen.line([x, y, x + length * right, y + length * down], fill=int(rng.integers(170, 256)))
    gap = 0.06 * length if orders > 1 else 0.14 * length
    if not orders or gap < 2:
        return
    for offset in np.arange(gap, length, gap):
        for turn in (-np.pi / 3, np.pi / 3):
            reach = 0.5 * (length - offset) * rng.uniform(0.4, 1)
            _grow(pen, (x + offset * right, y + offset * down), angle + turn, reach, orders - 1, rng)


def _brightness(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    """Raise the brightest channel (the V of HSV) and keep hue and saturation."""
    more = (0.1, 0.2, 0.3, 0.4, 0.5)[level]
    value = image.max(axis=2, keepdims=True)
    raised = np.clip(value + more, 0, 1)
    return np.where(value > 0, image * raised / np.where(value > 0, value, 1), raised)


def _contrast(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    mean = image.mean(axis=(0, 1))
    return mean + (image - mean) * (0.4, 0.3, 0.2, 0.1, 0.05)[level]


def _elastic_transform(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    """Displace pixels by a smooth random field of the given root mean square."""
    length = _side(image) * (0.04, 0.06, 0.08, 0.1, 0.12)[level]
    field = rng.normal(size=(2, *image.shape[:2]))
    field = ndimage.gaussian_filter(field, (0, *[_side(image) * 0.1] * 2), mode="nearest")
    return _displaced(image, field * length / np.sqrt((field**2).sum(0).mean()))


def _pixelate(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    share = (0.6, 0.5, 0.4, 0.3, 0.25)[level]
    height, width = image.shape[:2]
    small = max(1, round(width * share)), max(1, round(height * share))
    planes = [Image.fromarray(plane.astype(np.float32)) for plane in np.moveaxis(image, 2, 0)]
    coarse = [plane.resize(small, Image.Resampling.BOX) for plane in planes]
    return np.stack(
        [np.asarray(plane.resize((width, height), Image.Resampling.NEAREST)) for plane in coarse], axis=2
    )


def _jpeg_compression(image: ImageArray, level: int, rng: np.random.Generator) -> ImageArray:
    eight_bit = np.round(image * 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(eight_bit[:, :, 0] if eight_bit.shape[2] == 1 else eight_bit).save(
        buffer, "JPEG", quality=(10, 7, 5, 3, 1)[level]
    )
    return np.asarray(Image.open(buffer)).reshape(image.shape) / 255


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian-noise": _gaussian_noise,
    "shot-noise": _shot_noise,
    "impulse-noise": _impulse_noise,
    "defocus-blur": _defocus_blur,
    "glass-blur": _glass_blur,
    "motion-blur": _motion_blur,
    "zoom-blur": _zoom_blur,
    "fog": _fog,
    "brightness": _brightness,
    "contrast": _contrast,
    "elastic-transform": _elastic_transform,
    "pixelate": _pixelate,
    "jpeg-compression": _jpeg_compression,
}


WEATHER: dict[str, Corruption] = {"snow": _snow, "frost": _frost}
WEATHER_SIDE = 64
"""Pixels of the shorter side that weather needs at least."""
_PUBLISHED_SIDE = 224
_ICE = np.array([0.82, 0.93, 1.0])
_LUMA = np.array([0.299, 0.587, 0.114])
"""Shares of red, green and blue in grey."""


def _cloud(
    height: int, width: int, decay: float, rng: np.random.Generator
) -> Float[np.ndarray, "height width"]:
    """Noise from 0 to 1 whose amplitudes fall with a power of the frequency."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None])
    frequency[0, 0] = 1
    waves = np.fft.fft2(rng.normal(size=(height, width))) / frequency**decay
    waves[0, 0] = 0
    cloud = np.fft.ifft2(waves).real
    spread = np.ptp(cloud)
    return (cloud - cloud.min()) / (spread if spread > 0 else 1)


def _published_size(image: ImageArray) -> tuple[int, int]:
    """Height and width where the shorter side has the 224 pixels that the published lengths are made for."""
    height, width = (round(size * _PUBLISHED_SIDE / _side(image)) for size in image.shape[:2])
    return height, width


def _resized(layer: Float[np.ndarray, "tall wide"], image: ImageArray) -> Float[np.ndarray, "height width"]:
    height, width = image.shape[:2]
    resized = Image.fromarray(layer.astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized, np.float64)


def _side(image: ImageArray) -> int:
    return min(image.shape[:2])


def _displaced(image: ImageArray, field: Float[np.ndarray, "2 height width"]) -> ImageArray:
    """Every pixel read where `field` (rows, columns; pixels) points."""
    places = np.mgrid[: image.shape[0], : image.shape[1]] + field
    channels = np.moveaxis(image, 2, 0)
    return np.stack(
        [ndimage.map_coordinates(plane, places, order=1, mode="nearest") for plane in channels], axis=2
    )
