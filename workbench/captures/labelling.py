"""``token_info``: what the tokens of a batch are, from the model's own description and the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from workbench.captures.registry import IMAGE_TOKENS, JOINED, MORE_TOKENS
from workbench.captures.tokens import (
    TokenInfo,
    image_tokens,
    patch_grid,
    special_kinds,
    tokens_by_id,
)

_VISION = ("vision_tower", "vision_model", "visual", "image_encoder", "vision_encoder")
_PIXELS = (
    "pixel_values",
    "hidden_states",
    "sample",
)  # the latter two are what denoising models call their latents
_SOUND = ("input_features", "input_values")


def token_info(model: Any, batch: Any, token_count: int | None = None) -> TokenInfo:
    """Labels, kinds, patch grid and mask of the tokens of ``batch``.

    Vision models of timm and transformers: special tokens (class, distillation, register), then patches
    labelled "row,column". Batches with ``input_ids``: words labelled by their ids, padding where the
    attention mask is 0, then what else the batch brings; where the model puts images among its words, their tokens are
    patches labelled "row,column", of several images "image:row,column". Anything else:
    ``token_count`` tokens labelled by number, of kind "token".

    What an encoder–decoder writes, the images of a model that has them apart from its words, and the words that a
    denoising model is given are the ``streams`` of the tokens.
    """
    module = model if isinstance(model, nn.Module) else getattr(model, "module", model)
    if not isinstance(batch, Mapping):
        return _main(module, {"input_ids" if _are_ids(batch) else "pixel_values": batch}, batch, token_count)
    main = _main(module, batch, batch, token_count)
    streams = other_streams(module, batch, main)
    if not streams:
        return main
    joined = next(iter(JOINED.of(type(module))), ())
    return replace(main, streams=streams, joined=joined)


def _main(module: nn.Module, named: Mapping[str, Any], batch: Any, token_count: int | None) -> TokenInfo:
    """The tokens that the model reads first."""
    for make in IMAGE_TOKENS.of(type(module)):
        if (packed := make(module, named)) is not None:
            return packed
    ids, mask = named.get("input_ids"), named.get("attention_mask")
    if _are_ids(ids):
        words = tokens_by_id(ids, mask)
        for key in MORE_TOKENS:
            words = MORE_TOKENS[key](words, named) if isinstance(named.get(key), Tensor) else words
        return with_images(words, module, named)
    for name in _PIXELS:
        pixels = named.get(name)
        if isinstance(pixels, Tensor) and pixels.ndim == 4:
            grid = patch_grid(module, (pixels.shape[-2], pixels.shape[-1]))
            if grid is None and name != "pixel_values":
                grid = pixels.shape[-2], pixels.shape[-1]  # a UNet attends among the pixels of its latents
            if grid is not None:
                return image_tokens(pixels.shape[0], special_kinds(module), grid)
    sound = any(isinstance(named.get(name), Tensor) for name in _SOUND)
    kind = "frame" if sound else "token"
    if not isinstance(mask, Tensor) or mask.ndim != 2 or (sound and mask.shape[1] != token_count):
        mask = None  # that of a sound is often finer than its tokens
    size, count = (_batch_size(batch), token_count or 0) if mask is None else mask.shape
    return tokens_by_id(torch.arange(count).expand(size, count), mask, kind)


def other_streams(module: nn.Module, batch: Mapping[str, Any], main: TokenInfo) -> dict[str, TokenInfo]:
    """What a batch holds beside the tokens that the model reads first, by the name of the stream."""
    streams = {}
    written = batch.get("decoder_input_ids")
    if _are_ids(written):
        streams["decoder"] = tokens_by_id(written, batch.get("decoder_attention_mask"))
    elif getattr(getattr(module, "config", None), "is_encoder_decoder", False) and main.count:
        # it shifts what it is given to the right by itself
        streams["decoder"] = tokens_by_id(torch.arange(main.count).expand(len(main), -1), None, "token")
    pixels, prompt = batch.get("pixel_values"), batch.get("encoder_hidden_states")
    for make in IMAGE_TOKENS.of(type(vision_model(module))):
        packed = make(vision_model(module), batch)
        streams |= {} if packed is None else {"image": packed}
    if isinstance(pixels, Tensor) and "image" not in streams and _are_ids(batch.get("input_ids")):
        vision, images = vision_model(module), math.prod(pixels.shape[:-3])
        grid = patch_grid(vision, (pixels.shape[-2], pixels.shape[-1])) if pixels.ndim in (4, 5) else None
        # without a grid there are images, of whose tokens nothing is known
        streams["image"] = (
            tokens_by_id(torch.zeros(images, 0, dtype=torch.long), None, "token")
            if grid is None
            else image_tokens(images, special_kinds(vision), grid)
        )
    if isinstance(prompt, Tensor) and prompt.ndim == 3:
        numbers = torch.arange(prompt.shape[1]).expand(prompt.shape[:2])
        streams["text"] = tokens_by_id(numbers, batch.get("encoder_attention_mask"), "word")
    return streams


def vision_model(module: nn.Module) -> nn.Module:
    """The part of a model that sees images; the model itself where no part is called so."""
    for owner in module.modules():
        for name in _VISION:
            if isinstance(child := getattr(owner, name, None), nn.Module):
                return child
    return module


def with_images(words: TokenInfo, module: nn.Module, batch: Mapping[str, Any]) -> TokenInfo:
    """The words, with the patches of images where the model puts them among its words.

    Where an input holds another number of image tokens than its images have patches, they stay unnumbered.
    """
    config, ids = getattr(module, "config", None), batch.get("input_ids")
    named = (getattr(config, name, None) for name in ("image_token_id", "video_token_id"))
    marks = [mark for mark in named if isinstance(mark, int)]
    if not marks or not isinstance(ids, Tensor):
        return words
    places = torch.isin(ids, torch.tensor(marks, device=ids.device))
    if not bool(places.any()):
        return words
    grids = iter(_image_grids(module, batch))
    labels, kinds, found = [list(row) for row in words.labels], [list(row) for row in words.kinds], []
    for row, own in enumerate(places.tolist()):
        here, images = [place for place, is_image in enumerate(own) if is_image], []
        while sum(math.prod(grid) for grid in images) < len(here) and (grid := next(grids, None)) is not None:
            images.append(grid)
        named = [
            (f"{number}:" if len(images) > 1 else "") + ",".join(map(str, spot))
            for number, grid in enumerate(images)
            for spot in _spots(grid)
        ]
        fit = len(named) == len(here)
        for place, label in zip(here, named if fit else ["image"] * len(here), strict=True):
            labels[row][place], kinds[row][place] = label, "patch"
        found.append([grid[-2:] for grid in images] if fit else [])
    return replace(words, labels=labels, kinds=kinds, image_grids=found)


def _spots(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Places in a grid in reading order; of a single frame without its number."""
    shape = grid if len(grid) == 2 or grid[0] > 1 else grid[1:]
    return [tuple(spot) for spot in torch.cartesian_prod(*map(torch.arange, shape)).tolist()]


def _image_grids(module: nn.Module, batch: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """(frames,) rows and columns of tokens of every image of a batch, as the language model gets them, in order."""
    config = getattr(module, "config", None)
    merged = getattr(getattr(config, "vision_config", None), "spatial_merge_size", 1)
    sizes = [batch.get(name) for name in ("image_grid_thw", "video_grid_thw")]
    sizes = [size for size in sizes if isinstance(size, Tensor)]
    if sizes:  # of a batch with both nothing says which comes first
        return [(t, h // merged, w // merged) for t, h, w in sizes[0].tolist()] if len(sizes) == 1 else []
    pixels = batch.get("pixel_values")
    if not isinstance(pixels, Tensor) or pixels.ndim not in (4, 5):
        return []
    grid = patch_grid(vision_model(module), (pixels.shape[-2], pixels.shape[-1]))
    if grid is None:
        return []
    shuffled = getattr(config, "scale_factor", 1)  # squares of patches that become one token
    shuffled = shuffled if isinstance(shuffled, int) else 1
    images = math.prod(pixels.shape[:-3])
    if pixels.ndim == 5:  # images that are 0 fill up inputs that have fewer
        images = int((pixels.flatten(2) != 0).any(-1).sum())
    return [(grid[0] // shuffled, grid[1] // shuffled)] * images


def _are_ids(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point()


def _batch_size(batch: Any) -> int:
    tensors = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else [batch]
    return next((int(value.shape[0]) for value in tensors if isinstance(value, Tensor) and value.ndim), 1)


def fit_tokens(tokens: TokenInfo, token_count: int | None) -> TokenInfo:
    """Text tokens lengthened to what the layers saw: models that work in windows pad the end by themselves.

    Images are left alone: a layer may see fewer tokens than the model has (windows, patches before the class
    token joins); so is what has several streams.
    """
    have = tokens.count
    if token_count is None or tokens.grid is not None or tokens.streams or token_count <= have:
        return tokens
    more = token_count - have
    return replace(
        tokens,
        labels=[labels + [""] * more for labels in tokens.labels],
        kinds=[kinds + ["padding"] * more for kinds in tokens.kinds],
        mask=torch.nn.functional.pad(tokens.mask, (0, more), value=False),
    )
