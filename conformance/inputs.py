"""Inputs for models of transformers, by what their forward takes: two texts, images, sounds, series, or several.

An argument of a name that is known here gets a tensor; where layouts differ between models under one name, several are
tried in turn. How many tokens stand for an image, a model says itself when it is given too few.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from conformance.shrink import configs_in

BATCH, LENGTH, SHORTER = 2, 12, 8
Batch = dict[str, Any]


class Sizes:
    """What a configuration, or one inside it, says under one of several names."""

    def __init__(self, config: Any) -> None:
        self.config = config
        whole = list(configs_in(config))
        sees = [each for each in whole if hasattr(each, "patch_size") or hasattr(each, "image_size")]
        self.vision = sees[-1] if sees else config
        self.whole = whole

    def get(self, *names: str, default: Any = None, within: Any = None) -> Any:
        for config in [within] if within is not None else self.whole:
            for name in names:
                value = getattr(config, name, None)
                if value is not None and not callable(value):
                    return value
        return default

    def number(self, *names: str, default: int, within: Any = None) -> int:
        value = self.get(*names, default=default, within=within)
        while isinstance(value, (list, tuple)) and value:
            value = value[0]
        if isinstance(value, dict):
            value = value.get("height", default)
        return int(value) if isinstance(value, (int, float)) else default

    @property
    def vocabulary(self) -> int:
        return self.number("vocab_size", default=99)

    @property
    def width(self) -> int:
        return self.number("hidden_size", "d_model", "n_embd", "embed_dim", "hidden_dim", default=64)

    @property
    def channels(self) -> int:
        return self.number("num_channels", "in_chans", "in_channels", default=3, within=self.vision)

    @property
    def image(self) -> tuple[int, int]:
        value = self.get("image_size", "img_size", "input_size", default=64, within=self.vision)
        if isinstance(value, dict):
            return value.get("height", 64), value.get("width", 64)
        if isinstance(value, (list, tuple)):
            return (int(value[0]), int(value[-1])) if value else (64, 64)
        return int(value), int(value)

    @property
    def patch(self) -> int:
        return self.number("patch_size", default=8, within=self.vision)


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def words(sizes: Sizes, length: int = LENGTH) -> Tensor:
    top = min(sizes.vocabulary, 90)
    return torch.randint(min(5, top - 1), top, (BATCH, length), generator=torch.Generator().manual_seed(2))


def _grid(sizes: Sizes) -> Tensor:
    return torch.tensor([[1, 4, 4]] * BATCH)


def _flat_patches(sizes: Sizes) -> Tensor:
    time = sizes.number("temporal_patch_size", default=1, within=sizes.vision)
    return noise(BATCH * 16, sizes.channels * time * sizes.patch**2)


def _patches(sizes: Sizes) -> Tensor:
    return noise(BATCH, 16, sizes.channels * sizes.patch**2)


def _images(sizes: Sizes) -> list[Tensor]:
    height, width = sizes.image
    frames = sizes.number("num_frames", "frames_per_clip", default=2)
    channels = sizes.channels
    one, several = noise(BATCH, channels, height, width), noise(BATCH, frames, channels, height, width)
    return [one, several, noise(BATCH, 1, channels, height, width), noise(BATCH, 1, 1, channels, height, width),
            _patches(sizes), _flat_patches(sizes), noise(BATCH, channels, 4 * sizes.patch, 4 * sizes.patch),
            noise(BATCH, channels, 224, 224), noise(BATCH * 16, channels, sizes.patch, sizes.patch)]  # fmt: skip


def _features(sizes: Sizes) -> list[Tensor]:
    names = ("num_mel_bins", "input_feat_per_channel", "feature_size", "input_size", "input_dim", "n_mels",
             "feature_projection_input_dim", "mel_bins")  # fmt: skip
    bins = list(dict.fromkeys(n for name in names if type(n := sizes.get(name)) is int)) or [80]
    frames = 2 * sizes.number("max_source_positions", default=32)
    found = [noise(BATCH, bins[0], frames)]
    found += [x for n in bins for x in (noise(BATCH, 64, n), noise(BATCH, n, 128), noise(BATCH, 1, 64, n))]
    found += [
        noise(BATCH, bins[0], 3000),
        noise(BATCH, 1, 1001, 64),
        noise(BATCH, 400),
        noise(BATCH, 1, 4000),
    ]
    return found


def _values(sizes: Sizes) -> list[Tensor]:
    bins = sizes.number("num_mel_bins", default=80)
    frames = sizes.number("max_length", default=64)
    return [noise(BATCH, 4000), noise(BATCH, sizes.number("audio_channels", "in_channels", default=1), 4000),
            noise(BATCH, frames, bins), words(sizes)]  # fmt: skip


def _series(sizes: Sizes) -> list[Tensor]:
    length = sizes.number("context_length", "prediction_length", default=32)
    lags = sizes.get("lags_sequence", default=[0])
    size = sizes.number("num_input_channels", "input_size", default=1)
    past = length + max(lags or [0])
    return [noise(BATCH, past).abs(), noise(BATCH, length, size).abs(), noise(BATCH, past, size).abs()]


def _time_features(sizes: Sizes, length: int) -> Tensor:
    return noise(BATCH, length, max(1, sizes.number("num_time_features", default=1)))


def _past(sizes: Sizes) -> int:
    return sizes.number("context_length", "prediction_length", default=32) + max(
        sizes.get("lags_sequence", default=[0]) or [0]
    )


# What an argument of this name gets, a list being tried in turn. Those in OPTIONAL are given also where none is needed.
ARGUMENTS: dict[str, Callable[[Sizes], Any]] = {
    "input_ids": words,
    "decoder_input_ids": lambda s: words(s, 7),
    "qformer_input_ids": lambda s: words(s, 5),
    "text_input_ids": words,
    "pixel_values": _images,
    "pixel_values_videos": lambda s: [noise(BATCH, 4, s.channels, *s.image), _flat_patches(s)],
    "video_values": lambda s: noise(BATCH, 4, s.channels, *s.image),
    "input_features": _features,
    "input_values": _values,
    "audio_values": _values,
    "inputs_embeds": lambda s: noise(BATCH, LENGTH, s.width),
    "hidden_states": lambda s: [
        noise(BATCH, LENGTH, s.width), noise(LENGTH, s.width), noise(BATCH, s.width, 8, 8), _flat_patches(s),
        _images(s)[0],
    ],
    "encoder_hidden_states": lambda s: noise(BATCH, 9, s.number("encoder_hidden_size", "hidden_size", default=64)),
    "past_values": _series,
    "past_observed_mask": lambda s: [torch.ones_like(x) for x in _series(s)],
    "past_time_features": lambda s: _time_features(s, _past(s)),
    "future_values": lambda s: noise(BATCH, s.number("prediction_length", default=16)).abs(),
    "future_time_features": lambda s: _time_features(s, s.number("prediction_length", default=16)),
    "static_categorical_features": lambda s: torch.zeros(BATCH, 1, dtype=torch.long),
    "static_real_features": lambda s: noise(BATCH, 1),
    "visual_feats": lambda s: noise(BATCH, 5, s.number("visual_feat_dim", default=2048)),
    "visual_pos": lambda s: noise(BATCH, 5, s.number("visual_pos_dim", default=4)).sigmoid(),
    "states": lambda s: noise(BATCH, 4, s.number("state_dim", default=17)),
    "actions": lambda s: noise(BATCH, 4, s.number("act_dim", "action_dim", default=4)),
    "rewards": lambda s: noise(BATCH, 4, 1),
    "returns_to_go": lambda s: noise(BATCH, 4, 1),
    "timesteps": lambda s: torch.arange(4).expand(BATCH, 4),
    "bbox": lambda s: torch.tensor([1, 2, 3, 4]).expand(BATCH, LENGTH, 4),
    "image_grid_thw": _grid,
    "grid_thw": _grid,
    "image_grid_hws": lambda s: torch.tensor([[4, 4]] * BATCH),
    "grid_hws": lambda s: torch.tensor([[4, 4]] * BATCH),
    "spatial_shapes": lambda s: torch.tensor([[4, 4]] * BATCH),
    "pixel_attention_mask": lambda s: [torch.ones(BATCH, 16).long(), torch.ones(BATCH, 1, *s.image).bool()],
    "image_sizes": lambda s: torch.tensor([s.image] * BATCH),
    "aspect_ratio_ids": lambda s: torch.ones(BATCH, 1, dtype=torch.long),
    "aspect_ratio_mask": lambda s: torch.ones(BATCH, 1, s.number("max_num_tiles", default=1), dtype=torch.long),
    "image": lambda s: _images(s)[0],
    "flattened_patches": lambda s: noise(BATCH, 16, s.number("patch_embed_hidden_size", default=768) + 2),
    "image_attention_mask": lambda s: torch.ones(BATCH, LENGTH, 1, dtype=torch.long),
    "input_points": lambda s: torch.rand(BATCH, 1, 1, 2) * 32,
    "task_inputs": lambda s: words(s),
    "prompt_depth": lambda s: noise(BATCH, 1, 16, 16).abs(),
    "audio_codes": lambda s: torch.randint(0, 50, (BATCH, s.number("num_codebooks", default=8), 10)),
    "input_audio_embeds": lambda s: noise(BATCH, 16, s.number("input_size", default=80)),
    "protein_input_ids": words,
    "protein_attention_mask": lambda s: torch.ones(BATCH, LENGTH, dtype=torch.long),
    "prompt_pixel_values": lambda s: _images(s)[0],
    "prompt_masks": lambda s: _images(s)[0],
    "query_embeds": lambda s: noise(BATCH, 8, s.width),
    "inputs": lambda s: noise(BATCH, 6, s.width),
    "context": lambda s: noise(BATCH, 6, s.width),
    "vision_features": lambda s: noise(BATCH, 16, s.width),
    "text_features": lambda s: noise(BATCH, 6, s.width),
    "input_features_mask": lambda s: [torch.ones(BATCH, x.shape[-1]).long() for x in _features(s)],
    "audio_mel": lambda s: noise(BATCH, 64, s.number("input_feat_size", default=128)),
    "audio_mel_mask": lambda s: torch.zeros(BATCH, 64).bool(),
    "freq": lambda s: torch.zeros(BATCH, 1).long(),
    "past_values_padding": lambda s: torch.zeros_like(_series(s)[0]).long(),
    "image_features": lambda s: noise(BATCH, 16, s.width),
    "aatype": lambda s: torch.randint(0, 20, (BATCH, LENGTH)),
    "pixel_position_ids": lambda s: torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"), -1)
    .flatten(0, 1).expand(BATCH, 16, 2),
}  # fmt: skip
OPTIONAL = {
    "input_ids", "pixel_values", "input_features", "input_values", "decoder_input_ids", "image_grid_thw", "grid_thw",
    "spatial_shapes", "past_values", "flattened_patches", "qformer_input_ids", "pixel_values_videos", "audio_values",
    "aspect_ratio_ids", "aspect_ratio_mask", "past_time_features", "past_observed_mask", "future_values",
    "future_time_features",    "states", "actions", "rewards", "returns_to_go", "timesteps",
    "visual_feats", "visual_pos", "task_inputs", "bbox",
    "input_features_mask", "image_attention_mask", "image_grid_hws", "image_sizes", "video_values", "input_points",
}  # fmt: skip
# Of those, what goes with images in some models and breaks them in others.
SOFT = {
    "image_sizes",
    "input_points",
    "bbox",
    "pixel_values_videos",
    "task_inputs",
    "spatial_shapes",
    "image_attention_mask",
    "input_features_mask",
}
# Of arguments that stand for one another, the first is given.
INSTEAD = (
    ("input_ids", "inputs_embeds"),
    ("input_ids", "hidden_states"),
    ("pixel_values", "pixel_values_videos"),
)


def kind_of(batch: Mapping[str, Any]) -> str:
    """text, image, audio, series or several of them, from the names of a batch."""
    kinds = []
    for kind, pattern in (
        ("text", "input_ids|bbox"), ("image", "pixel|image|patches|visual"), ("video", "video"),
        ("audio", "features|input_values|audio"), ("series", "past_values|^states"),
    ):  # fmt: skip
        if any(re.search(pattern, name) and name != "decoder_input_ids" for name in batch):
            kinds.append(kind)
    return " and ".join(kinds) + (" to text" if "decoder_input_ids" in batch else "") or "vectors"


def batches(model: nn.Module, config: Any) -> Iterator[Batch]:
    """Batches that the model may take, the likeliest first; those of models of several kinds without padding."""
    sizes = Sizes(config)
    parameters = {
        name: p
        for name, p in inspect.signature(model.forward).parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    required = [name for name, p in parameters.items() if p.default is p.empty]
    names = [name for name in parameters if name in required or name in OPTIONAL]
    for first, second in INSTEAD:
        if first in names and second in names and second not in required:
            names.remove(second)
    if (
        "decoder_input_ids" in names
        and not getattr(config, "is_encoder_decoder", False)
        and "decoder_input_ids" not in required
    ):
        names.remove("decoder_input_ids")
    sees = _sees(config) or getattr(model, "main_input_name", "") == "pixel_values"
    if "pixel_values" in names and "pixel_values" not in required and not sees:
        names.remove("pixel_values")
    choices = {name: ARGUMENTS[name](sizes) for name in names if name in ARGUMENTS}
    unknown = [
        name for name in required if name not in ARGUMENTS and name not in ("attention_mask", "position_ids")
    ]
    if unknown:
        raise NoInputs(f"its forward needs {', '.join(unknown)}")
    most = max((len(value) for value in choices.values() if isinstance(value, list)), default=1)
    several = len({"pixel_values", "input_features", "input_values", "pixel_values_videos"} & set(names)) > 0
    for number in range(most):
        batch = {
            name: value[min(number, len(value) - 1)] if isinstance(value, list) else value
            for name, value in choices.items()
        }
        if "attention_mask" in parameters and "input_ids" in batch:
            mask = torch.ones_like(batch["input_ids"])
            if not several:
                padded = mask.clone()
                padded[1, SHORTER:] = 0
                yield batch | {"attention_mask": padded}
            batch = batch | {"attention_mask": mask}
        elif "attention_mask" in required:
            batch = batch | {"attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long)}
        yield batch
        if several and "input_ids" in batch:
            queries = Sizes(config).number(
                "num_query_tokens", "image_seq_length", "mm_tokens_per_image", default=16
            )
            guess = with_placeholders(batch, config, min(queries, 64))
            if guess is not batch:
                yield guess
        plain = {name: value for name, value in batch.items() if name in required or name not in SOFT}
        if several and plain.keys() != batch.keys():
            yield plain
    fewer = {name: value for name, value in batch.items() if name in required}
    if fewer and fewer.keys() != batch.keys():
        yield fewer
    if "input_ids" in batch and len(batch) > 2:
        yield {
            name: value
            for name, value in batch.items()
            if name in required or name in ("input_ids", "attention_mask", "decoder_input_ids")
        }


def _sees(config: Any) -> bool:
    return any(
        hasattr(each, "patch_size") or hasattr(each, "image_size") or hasattr(each, "num_channels")
        for each in configs_in(config)
    )


class NoInputs(Exception):
    """A forward that takes what nothing here makes."""


# Placeholders -----------------------------------------------------------------------------------------------

_COUNTS = re.compile(r"tokens:?\s*(?:is\s*)?(\d+)[^\d]+features:?\s*(\d+)")


def with_placeholders(
    batch: Batch, config: Any, count: int, which: str = "image", types: bool = False
) -> Batch:
    """The batch with so many tokens in each text that stand for the image (or the sound)."""
    names = [f"{which}_{end}" for end in ("token_id", "token_index", "pad_token_id", "patch_id", "token")]
    names += ["media_placeholder_token_id", "media_token_id"]
    token = next(
        (
            value
            for each in configs_in(config)
            for name in names
            if isinstance(value := getattr(each, name, None), int)
        ),
        None,
    )
    if token is None or "input_ids" not in batch:
        return batch
    plain = words(Sizes(config))
    ids = torch.cat([plain[:, :3], torch.full((BATCH, count), token), plain[:, 3:]], dim=1)
    new = batch | {"input_ids": ids}
    if types:
        new["mm_token_type_ids"] = (ids == token).long()
    if "attention_mask" in batch:
        new["attention_mask"] = torch.ones_like(ids)
    if "bbox" in batch:
        new["bbox"] = torch.tensor([1, 2, 3, 4]).expand(*ids.shape, 4)
    return new


def mended(model: nn.Module, batch: Batch, config: Any, error: BaseException) -> Batch | None:
    """The batch with what the error says is missing; None where it says nothing.

    That is an argument by its name, or as many tokens for an image as there are features.
    """
    for name in inspect.signature(model.forward).parameters:
        if name in ARGUMENTS and name not in batch and re.search(rf"\b{name}\b", str(error)):
            value = ARGUMENTS[name](Sizes(config))
            return batch | {name: value[0] if isinstance(value, list) else value}
    if "mm_token_type_ids" in str(error) and "mm_token_type_ids" not in batch and "input_ids" in batch:
        return with_placeholders(batch, config, batch["input_ids"].shape[1] - LENGTH, types=True)
    found = _COUNTS.search(str(error).lower())
    if not found or "input_ids" not in batch:
        return None
    features = int(found.group(2))
    which = next((kind for kind in ("audio", "video", "image") if kind in str(error).lower()), "image")
    width = batch["input_ids"].shape[1] - LENGTH
    for total in (features // Sizes(config).width, features):
        if total and total % BATCH == 0 and total // BATCH != width and total < 4000:
            return with_placeholders(batch, config, total // BATCH, which, "mm_token_type_ids" in batch)
    return None
