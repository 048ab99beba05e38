"""Attention as a filter of a noisy photograph, compared with image filters (abdullaev2025 §II-C, §III-A).

A crop of a photograph gets Gaussian noise. The attention of every layer of a model, which sees the crop in tiles of its
image size, takes weighted means of the noisy patches. Identity attention, without trained weights, does the same with
pixels and their neighbourhoods. scikit-image's bilateral and non-local-means filters are the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.analyses.filter_kernels import squared_distances
from workbench.analyses.layer import grid_positions, patch_places
from workbench.captures import capture
from workbench.core import null_distributions
from workbench.core.errors import InputError, UnknownName
from workbench.core.extras import require
from workbench.data.pools import photo_files, read_image
from workbench.frames.provenance import versions
from workbench.frames.results import shared
from workbench.studies.evaluation.pixel_models import PixelModel

if TYPE_CHECKING:
    from workbench.core.options import Numbers
    from workbench.models.loading import LoadedModel

Image = Float[np.ndarray, "height width channel"]
_TILE = 32
"""Side in pixels of the tiles of identity attention, which compares all pairs of a tile's pixels."""
_REACH = 1
"""Pixels on each side in a pixel's neighbourhood: 3 × 3."""
_SMALLEST = 16  # pixels: below, scikit-image's filters see the edge more than the image
# Strengths that are tried for each filter; the clean image chooses. Contents are apart by multiples of the noise.
_CONTENT = (0.5, 0.7, 1.0, 1.4, 2.0)
_PLACE = (1.0, 2.0, 3.0, 5.0)


@dataclass
class Filtered:
    """A noisy photograph after every filter, with the distance to the clean one."""

    clean: Image
    images: dict[str, Image]
    """By name; the noisy one is first."""
    rows: list[dict[str, Any]]
    photo: str
    model: str
    provenance: dict[str, Any]
    window: tuple[int, int]
    """Height and width in pixels of the model's images."""

    def frame(self) -> pd.DataFrame:
        """Return one row per filter: model, photo, filter, layer (of the attention), settings, psnr (dB)."""
        frame = pd.DataFrame(self.rows).astype({"layer": "Int64"})
        frame.insert(0, "photo", self.photo)
        frame.insert(0, "model", self.model)
        frame.attrs["provenance"] = shared([self.provenance])
        return frame

    def findings(self) -> list[str]:
        """State the PSNR after attention, image filters and uniform attention."""
        table = self.frame()
        psnr = table.set_index("filter")["psnr"]
        best = table.loc[table[table["layer"].notna()]["psnr"].idxmax()]
        references, layers = (
            psnr[["bilateral filter", "non-local means"]],
            table[table["layer"].notna()]["psnr"],
        )
        free = psnr[[name for name in psnr.index if name.startswith("identity")]]
        over_even = best["psnr"] - psnr["uniform attention"]
        gap = abs(references.max() - free.max())
        return [
            f"Untrained identity attention cleans a noisy photograph to within {gap:.1f} dB "
            f"of {references.idxmax()}; {(layers < psnr['noisy']).sum()} of {len(layers)} layers of {self.model} leave "
            "it worse than the noise did.",
            "Settings of filters are the best of a small grid, compared with the clean photograph.",
            f"After the attention of {self.model}, mean over heads, it has {best['psnr']:.1f} dB at best "
            f"({best['filter']}): {abs(over_even):.1f} dB {'above' if over_even > 0 else 'below'} a uniform mean of "
            "its patches.",
        ]


def filter_photograph(
    model: LoadedModel,
    photo: str = "astronaut",
    *,
    side: int = 128,
    sigma: float = 0.1,
    layers: Numbers = None,
    seed: int = 0,
) -> Filtered:
    """Filter the centre of a bundled photograph, `side` pixels wide, with noise of standard deviation `sigma`.

    Each filter uses the settings of a small grid that are closest to the clean image, so it is shown at its best. A
    layer's attention has no settings; it is averaged over heads, with rows scaled to sum to 1 over the patches. Uniform
    attention, the mean of the patches, is the baseline.

    Raises UnknownName for a photograph that is not bundled, InputError for a crop larger than the photograph, smaller
    than 16 pixels or the model's images, or not a multiple of their size, and for a model without a grid of patches or
    without attention between tokens.
    """
    files = photo_files()
    if photo not in files:
        raise UnknownName("photograph", photo, files)
    if not 0 < sigma <= 1:
        raise InputError(f"sigma is the standard deviation of noise on pixels from 0 to 1; got {sigma!r}")
    if model.image is None:
        raise InputError(f"{model.spec} takes no images")
    clean = _middle(read_image(files[photo]), side, model.image.channels, model.image.size, photo)
    rng = np.random.default_rng(null_distributions.derived_seed(seed, photo, "noise"))
    noisy = np.clip(clean + sigma * rng.normal(size=clean.shape), 0, 1)
    # First: a model that is refused need not wait for the filters.
    by_layer = list(_through_layers(model, noisy, layers))
    images, rows = {"noisy": noisy}, [_row("noisy", noisy, clean)]
    for name, tried in _candidates(noisy, sigma):
        best = max(tried, key=lambda candidate: _psnr(candidate[1], clean))
        images[name] = best[1]
        rows.append(_row(name, best[1], clean, settings=best[0]))
    for layer, image in by_layer:
        name = "uniform attention" if layer is None else f"layer {layer}"
        images[name] = image
        rows.append(_row(name, image, clean, layer=layer))
    options = {"photo": photo, "side": side, "sigma": sigma, "layers": layers}
    provenance = {
        "analysis": "filter-photograph",
        "options": options,
        "model": model.identity,
        "inputs": {"spec": f"photos/{photo}", "n": 1, "seed": seed},
        "seed": seed,
        "versions": versions(),
    }
    return Filtered(clean, images, rows, photo, model.spec, provenance, model.image.size)


def _row(
    name: str, image: Image, clean: Image, layer: int | None = None, settings: str = ""
) -> dict[str, Any]:
    return {"filter": name, "layer": layer, "settings": settings, "psnr": _psnr(image, clean)}


def _psnr(image: Image, clean: Image) -> float:
    require("the signal-to-noise ratio of a filtered photograph", "skimage")
    from skimage.metrics import peak_signal_noise_ratio

    return float(peak_signal_noise_ratio(clean, image, data_range=1.0))


def _middle(photo: np.ndarray, side: int, channels: int, size: tuple[int, int], name: str) -> Image:
    """Return the centre of a photograph with values from 0 to 1, grey for a grey model."""
    if isinstance(side, bool) or not isinstance(side, int) or side < _SMALLEST:
        raise InputError(
            f"side is at least {_SMALLEST} pixels, or there is too little to filter; got {side!r}"
        )
    if side > min(photo.shape[:2]):
        raise InputError(f"{name} has {photo.shape[0]} × {photo.shape[1]} pixels; {side} × {side} do not fit")
    if any(side % extent for extent in size):
        raise InputError(
            f"side {side} is no multiple of the model's images of {size[0]} × {size[1]}; it sees the part in pieces "
            "of that size"
        )
    top, left = ((extent - side) // 2 for extent in photo.shape[:2])
    values = photo.astype(np.float64) / (255 if photo.dtype == np.uint8 else 1)
    values = values[:, :, None] if values.ndim == 2 else values[:, :, :3]
    if values.shape[2] != channels:
        values = values.mean(2, keepdims=True).repeat(channels, 2)
    return values[top : top + side, left : left + side]


def _candidates(noisy: Image, sigma: float) -> Iterator[tuple[str, list[tuple[str, Image]]]]:
    """Yield every filter with settings, with (settings, filtered image) for each candidate."""
    require("filtering a photograph", "skimage")
    from skimage.restoration import denoise_bilateral, denoise_nl_means

    # The library takes a grey image without an axis of channels only.
    seen, axis = (noisy[:, :, 0], None) if noisy.shape[2] == 1 else (noisy, 2)
    content_widths = [factor * sigma for factor in _CONTENT]
    yield (
        "bilateral filter",
        [
            (
                f"sigma_color {near:.3g}, sigma_spatial {far:g}",
                denoise_bilateral(seen, sigma_color=near, sigma_spatial=far, channel_axis=axis).reshape(
                    noisy.shape
                ),
            )
            for near in content_widths
            for far in _PLACE
        ],
    )
    yield (
        "non-local means",
        [
            (
                f"h {near:.3g}",
                denoise_nl_means(
                    seen, h=near, sigma=sigma, patch_size=5, patch_distance=7, channel_axis=axis
                ).reshape(noisy.shape),
            )
            for near in content_widths
        ],
    )
    parts: dict[tuple[float, float], list[Image]] = {}
    for tile in _tiles(noisy, (_TILE, _TILE)):
        for bandwidths, image in _identity(tile, content_widths, (np.inf, *_PLACE)):
            parts.setdefault(bandwidths, []).append(image)
    for name, places in (("identity attention", (np.inf,)), ("identity attention with positions", _PLACE)):
        yield (
            name,
            [
                (
                    f"h_y {near:.3g}" + (f", h_p {far:g}" if np.isfinite(far) else ""),
                    _joined(parts[near, far], noisy.shape),
                )
                for near in content_widths
                for far in places
            ],
        )


def identity_attention(image: Image, h_y: float, h_p: float = np.inf) -> Image:
    """Apply one attention layer with W_Q = W_K = W_V = I over the pixels of an image (Theorem III.1, eqs. 12–14).

    The content of a pixel is its 3 × 3 neighbourhood, weights are exp(−‖y_i − y_j‖²/h_y² − ‖p_i − p_j‖²/h_p²) with the
    mean square over the neighbourhood, and the value of a pixel is the pixel itself: non-local means over the whole
    image for h_p = ∞, otherwise a bilateral filter of patches.
    """
    ((_, filtered),) = _identity(image, [h_y], [h_p])
    return filtered


def _identity(
    image: Image, contents: Sequence[float], places: Sequence[float]
) -> Iterator[tuple[tuple[float, float], Image]]:
    """Yield `identity_attention` for every pair of bandwidths, computing each exponential once."""
    content_distances, position_distances = _pixel_distances(image)
    pixels = image.reshape(-1, image.shape[2])
    of_places = [np.exp(-position_distances / far**2) for far in places]
    for near in contents:
        of_content = np.exp(-content_distances / near**2)
        for far, factor in zip(places, of_places, strict=True):
            weights = of_content * factor  # its own is 1, so that no row is all zeros
            mean = weights @ pixels / weights.sum(-1, keepdims=True)
            yield (near, far), mean.reshape(image.shape)


def _pixel_distances(image: Image) -> tuple[np.ndarray, np.ndarray]:
    """Return squared distances of all pairs of pixels: mean over neighbourhoods, and of positions."""
    height, width = image.shape[:2]
    padded = np.pad(image, ((_REACH, _REACH), (_REACH, _REACH), (0, 0)), mode="reflect")
    span = 2 * _REACH + 1
    around = np.lib.stride_tricks.sliding_window_view(padded, (span, span), axis=(0, 1))
    content = torch.from_numpy(around.reshape(height * width, -1).copy())
    places = grid_positions((height, width))
    return (
        (squared_distances(content) / content.shape[1]).numpy(),
        squared_distances(places).numpy(),
    )


def attention_filter(image: Image, attn: Float[Tensor, "patch patch"], grid: tuple[int, int]) -> Image:
    """Replace every patch by the mean of all patches of an image weighted by a row of attention.

    Rows are scaled to sum to 1. Raises InputError if the grid does not fit the image or the attention.
    """
    (rows, columns), (height, width, channels) = grid, image.shape
    if height % rows or width % columns or attn.shape != (rows * columns,) * 2:
        raise InputError(
            f"attention of shape {tuple(attn.shape)} on {rows} × {columns} patches does not fit an image of "
            f"{height} × {width} pixels"
        )
    tall, wide = height // rows, width // columns
    patches = image.reshape(rows, tall, columns, wide, channels).swapaxes(1, 2).reshape(rows * columns, -1)
    weights = attn.double().numpy()
    mean = weights / weights.sum(-1, keepdims=True) @ patches
    return mean.reshape(rows, columns, tall, wide, channels).swapaxes(1, 2).reshape(image.shape)


def _through_layers(model: LoadedModel, noisy: Image, layers: Numbers) -> Iterator[tuple[int | None, Image]]:
    """Filter the noisy image with uniform attention (None) and with that of each layer, tile by tile."""
    assert model.image is not None  # looked at before
    tiles = _tiles(noisy, model.image.size)
    classifier = PixelModel(model.module, model.image.mean, model.image.std, _takes_names(model))
    pixels = torch.from_numpy(np.stack(tiles)).permute(0, 3, 1, 2).float()
    captured = capture(model, classifier.prepared(pixels), layers=layers, sites=("attn",))
    if captured.tokens is None or captured.tokens.grid is None:
        raise InputError(f"{model.spec} has no grid of patches that could be filtered")
    places = patch_places(captured.tokens.kinds[0], captured.tokens.grid)
    grid, count, noted = captured.tokens.grid, len(captured.tokens.kinds[0]), False

    def through(maps: Tensor) -> Image:
        parts = zip(tiles, maps, strict=True)
        return _joined([attention_filter(tile, attn, grid) for tile, attn in parts], noisy.shape)

    for record in captured:
        if record.kind != "token" or record.attn is None or record.attn.shape[-2:] != (count, count):
            what = "from channel to channel" if record.kind == "channel" else "by no map of its tokens"
            raise InputError(
                f"layer {record.index} of {model.spec} mixes tokens {what}: a filter needs token × token weights; "
                "choose other layers"
            )
        heads = record.attn.double().cpu().mean(1)[:, places][:, :, places]
        if not noted:
            yield None, through(torch.ones_like(heads))
        noted = True
        yield record.index, through(heads)


def _takes_names(model: LoadedModel) -> bool:
    return getattr(model.module, "main_input_name", None) == "pixel_values"


def _tiles(image: Image, size: tuple[int, int]) -> list[Image]:
    """Cut an image into tiles, row by row; the last ones are smaller if the size does not divide it."""
    height, width = image.shape[:2]
    return [
        image[top : top + size[0], left : left + size[1]]
        for top in range(0, height, size[0])
        for left in range(0, width, size[1])
    ]


def _joined(tiles: list[Image], shape: tuple[int, ...]) -> Image:
    """Join the tiles of `_tiles`."""
    image, (top, left) = np.empty(shape), (0, 0)
    for tile in tiles:
        image[top : top + len(tile), left : left + tile.shape[1]] = tile
        left += tile.shape[1]
        if left >= shape[1]:
            top, left = top + len(tile), 0
    return image
