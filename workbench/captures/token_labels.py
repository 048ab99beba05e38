"""Read the tokens of a model's inputs: words, patches, special tokens, images among words."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from workbench.captures.family import Visit, declared, merged
from workbench.captures.labelled_tokens import TokenInfo, coarser_grid, image_tokens, numbered, tokens_by_id
from workbench.captures.layer_records import Call

_EMBEDS = ("proj", "projection", "patch_embedding")  # what a module of patch embeddings projects them by
_VISION = ("vision_tower", "vision_model", "visual", "image_encoder", "vision_encoder")
# The latter two are what denoising models call their latents.
_PIXELS = ("pixel_values", "hidden_states", "sample")
_SOUND = ("input_features", "input_values")
# What attention modules call the tokens that they attend to, where these are not those of the queries.
_OTHERS = {
    "key_value_states", "encoder_hidden_states", "cross_attention_states", "key", "keys", "kv", "context", "memory",
    "inputs", "encoder_output", "encoder_outputs", "encoder_states",
}  # fmt: skip
# Of a module of unknown names: no tokens, but something that is added to them or to the scores.
_NO_TOKENS = re.compile(r"pos|mask|rotary|freq|bias|cos|sin|temb|time|scale|resid|skip|first", re.IGNORECASE)


def special_kinds(module: nn.Module) -> tuple[str, ...]:
    """Kinds of the tokens before the patches, in order, for vision models of timm and transformers."""
    owner = next((child for child in module.modules() if _special_tokens(child)), module)
    special = _special_tokens(owner)
    kinds = [kind for kind in ("class", "distillation") if kind in special]
    registers = special.get("register")
    count = registers.shape[1] if registers is not None and registers.ndim == 3 else 0
    declared = getattr(module, "num_prefix_tokens", None)
    if isinstance(declared, int):
        count = max(0, declared - len(kinds)) if count == 0 else count
        kinds = kinds[:declared]
    return tuple(kinds + ["register"] * count)


def _special_tokens(module: nn.Module) -> dict[str, Tensor]:
    """The special tokens that a module itself has, by kind."""
    return {
        kind: value
        for name, kind in merged("special_tokens").items()
        if isinstance(value := getattr(module, name, None), Tensor)
    }


def patch_grid(module: nn.Module, image_size: tuple[int, int]) -> tuple[int, int] | None:
    """Return (rows, columns) of the patches of an image of (height, width); None if unknown."""
    for child in module.modules():
        size = vars(child).get("patch_size", getattr(type(child), "patch_size", None))
        project = next((part for name in _EMBEDS if (part := getattr(child, name, None)) is not None), None)
        if not isinstance(size, (int, Sequence)) or project is None:
            continue
        patch = (size, size) if isinstance(size, int) else tuple(size)[:2]
        if getattr(child, "dynamic_img_pad", False) or hasattr(child, "maybe_pad"):
            image_size = _rounded_up(image_size, patch)
        if isinstance(project, nn.Conv2d) and isinstance(project.padding, tuple):
            sides = zip(image_size, project.padding, project.kernel_size, project.stride, strict=True)
            rows, columns = ((side + 2 * pad - kernel) // step + 1 for side, pad, kernel, step in sides)
            return rows, columns
        return image_size[0] // patch[0], image_size[1] // patch[1]
    return None


def _rounded_up(image_size: tuple[int, int], patch: Sequence[int]) -> tuple[int, int]:
    """Return the size of an image that is padded to whole patches."""
    height, width = (-(-side // size) * size for side, size in zip(image_size, patch, strict=True))
    return height, width


def readable_token(tokenizer: Any, piece: str, number: int) -> str:
    """Return the text of a byte-level piece: " tea" for "Ġtea", "我们" for "æĪĳä»¬"; other pieces as they are."""
    alphabet = _byte_alphabet()
    if piece.isascii() or number in tokenizer.all_special_ids or not alphabet.keys() >= {*piece}:
        return piece
    try:
        text = bytes(alphabet[character] for character in piece).decode()
    except UnicodeDecodeError:  # part of a character of several bytes has no text of its own
        return piece
    decoded = tokenizer.decode([number], clean_up_tokenization_spaces=False)
    return text.replace("\n", "⏎") if text.strip() == decoded.strip() else piece


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """The bytes that byte-level tokenizers write as these characters (those of GPT-2)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


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
    joined = next(iter(declared("token_streams", type(module))), ())
    return replace(main, streams=streams, joined=joined)


def _main(module: nn.Module, named: Mapping[str, Any], batch: Any, token_count: int | None) -> TokenInfo:
    """The tokens that the model reads first."""
    for make in declared("image_tokens", type(module)):
        if (packed := make(module, named)) is not None:
            return packed
    ids, mask = named.get("input_ids"), named.get("attention_mask")
    if _are_ids(ids):
        words = tokens_by_id(ids, mask)
        for key, extend in merged("batch_tokens").items():
            words = extend(words, named) if isinstance(named.get(key), Tensor) else words
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
    """Return the tokens of a batch other than those that the model reads first, by the name of the stream."""
    streams = {}
    written = batch.get("decoder_input_ids")
    if _are_ids(written):
        streams["decoder"] = tokens_by_id(written, batch.get("decoder_attention_mask"))
    elif getattr(getattr(module, "config", None), "is_encoder_decoder", False) and main.count:
        # it shifts what it is given to the right by itself
        streams["decoder"] = tokens_by_id(torch.arange(main.count).expand(len(main), -1), None, "token")
    pixels, prompt = batch.get("pixel_values"), batch.get("encoder_hidden_states")
    vision = vision_model(module)
    for make in declared("image_tokens", type(vision)):
        packed = make(vision, batch)
        streams |= {} if packed is None else {"image": packed}
    if isinstance(pixels, Tensor) and "image" not in streams and _are_ids(batch.get("input_ids")):
        images = math.prod(pixels.shape[:-3])
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
            # asking a module for what it lacks is slow
            there = name in owner._modules or name in vars(owner) or hasattr(type(owner), name)
            if there and isinstance(child := getattr(owner, name, None), nn.Module):
                return child
    return module


def with_images(words: TokenInfo, module: nn.Module, batch: Mapping[str, Any]) -> TokenInfo:
    """The words, with the patches of images where the model puts them among its words.

    Where an input holds another number of image tokens than its images have patches, they stay unnumbered.
    """
    ids, marks = batch.get("input_ids"), image_marks(module)
    if not marks or not isinstance(ids, Tensor):
        return words
    places = torch.isin(ids, torch.tensor(marks, device=ids.device))
    if not bool(places.any()):
        return words
    grids = iter(_image_grids(module, batch, int(places.sum())))
    labels, kinds, grids_by_input = (
        [list(row) for row in words.labels],
        [list(row) for row in words.kinds],
        [],
    )
    for row, marked in enumerate(places.tolist()):
        here, images = [position for position, is_image in enumerate(marked) if is_image], []
        while sum(math.prod(grid) for grid in images) < len(here) and (grid := next(grids, None)) is not None:
            images.append(grid)
        named = [
            (f"{number}:" if len(images) > 1 else "") + ",".join(map(str, spot))
            for number, grid in enumerate(images)
            for spot in _spots(grid)
        ]
        fit = len(named) == len(here)
        for position, label in zip(here, named if fit else ["image"] * len(here), strict=True):
            labels[row][position], kinds[row][position] = label, "patch"
        grids_by_input.append([grid[-2:] for grid in images] if fit else [])
    return replace(words, labels=labels, kinds=kinds, image_grids=grids_by_input)


def image_marks(module: nn.Module) -> list[int]:
    """Return the ids of the tokens that stand for patches of images and videos among a model's words."""
    config = getattr(module, "config", None)
    named = (getattr(config, name, None) for name in ("image_token_id", "video_token_id"))
    return [mark for mark in named if isinstance(mark, int)]


def _spots(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Places in a grid in reading order; of a single frame without its number."""
    shape = grid if len(grid) == 2 or grid[0] > 1 else grid[1:]
    return [tuple(spot) for spot in torch.cartesian_prod(*map(torch.arange, shape)).tolist()]


def _image_grids(module: nn.Module, batch: Mapping[str, Any], places: int) -> list[tuple[int, ...]]:
    """(frames,) rows and columns of tokens of every image of a batch, as the language model gets them, in order.

    Where ``places``, the tokens of all images, are fewer than the patches, squares of patches became one token (pooled,
    or side by side in its channels), unless queries of the model's own gather from them.
    """
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
    images = math.prod(pixels.shape[:-3])
    if pixels.ndim == 5:  # images that are 0 fill up inputs that have fewer
        images = int((pixels.flatten(2) != 0).any(-1).sum())
    if places != images * math.prod(grid) and not any(map(_gathers, module.modules())):
        even = images > 0 and places % images == 0
        grid = (coarser_grid(grid, places // images) if even else None) or grid
    return [grid] * images


def _gathers(module: nn.Module) -> bool:
    """Whether a module has learned queries that gather from patches, and stand nowhere among them."""
    return bool(re.search("resampler|perceiver|qformer", type(module).__name__, re.IGNORECASE))


def _are_ids(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point()


def _batch_size(batch: Any) -> int:
    tensors = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else [batch]
    return next((int(value.shape[0]) for value in tensors if isinstance(value, Tensor) and value.ndim), 1)


def fit_tokens(tokens: TokenInfo, token_count: int | None, attended: Tensor | None = None) -> TokenInfo:
    """Return the tokens of the layers' token axis, where it is longer than the tokens of the batch.

    ``attended`` (batch, token) is true for keys that some query may attend to. If all added tokens are hidden
    at the end, they are padding (models that attend in windows pad their inputs). Otherwise the model added tokens at
    unknown places (a class token, a soft prompt), and all tokens are numbered and of kind "token". Not read if it has
    neither one row nor one per input.

    Fewer tokens are left unchanged, since patches may come before a class token; so are several streams.
    """
    if token_count is None or tokens.streams or token_count <= tokens.count:
        return tokens
    if attended is not None and len(attended) not in (1, len(tokens)):
        attended = None  # the model joins or repeats inputs: its rows are not those of the batch
    more = token_count - tokens.count
    mask = torch.nn.functional.pad(tokens.mask, (0, more), value=False)
    if attended is None or not torch.equal(attended.expand_as(mask), mask):
        return numbered(tokens, token_count, attended)
    return replace(
        tokens,
        labels=[labels + [""] * more for labels in tokens.labels],
        kinds=[kinds + ["padding"] * more for kinds in tokens.kinds],
        mask=mask,
    )


def source_of(visit: Visit, call: Call) -> str:
    """Whether a call is "self" or "cross" attention: by what its module was given beside the tokens of the queries.

    Tokens that are joined with those of the queries on one axis, of queries and of keys (MM-DiT), are self
    attention.
    """
    for source in declared("sources", type(visit.module)):
        return source
    if call.kind != "token":
        return "self"
    tensors = dict(_token_arguments(visit))
    queries, keys = call.q.shape[2], call.k.shape[2]
    first = next(iter(tensors.values()), None)
    for name, other in tensors.items():
        if other is first or _same(first, other):
            continue
        if name in _OTHERS:
            joined = queries == keys == sum(_count(value) for value in (first, other))
            return "self" if joined else "cross"
        if queries != keys == _count(other):
            return "cross"
    return "self"


def _token_arguments(visit: Visit) -> list[tuple[str, Tensor]]:
    """Return a module's token arguments by name, the queries first."""
    names = _names(type(visit.module))
    named = [*zip(names, visit.args, strict=False), *visit.kwargs.items()]
    tensors = [(name, value) for name, value in named if _are_tokens(value)]
    if not tensors:
        return []
    width = tensors[0][1].ndim
    return tensors[:1] + [
        (name, value)
        for name, value in tensors[1:]
        if name in _OTHERS or (value.ndim == width and not _NO_TOKENS.search(name))
    ]


@functools.cache
def _names(cls: type[nn.Module]) -> tuple[str, ...]:
    return tuple(inspect.signature(cls.forward).parameters)[1:]


def _are_tokens(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 2


def _count(tokens: Tensor | None) -> int:
    """How many tokens there are in (…, token, width), or in a map (batch, channel, row, column)."""
    if tokens is None:
        return 0
    return tokens.shape[-2] if tokens.ndim < 4 else tokens.shape[-2] * tokens.shape[-1]


def _same(first: Tensor | None, other: Tensor) -> bool:
    if first is None or first.shape != other.shape or first.device != other.device or first.is_meta:
        return False
    return torch.equal(first, other)
