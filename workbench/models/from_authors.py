"""Models of the papers' authors, ToST and CRATE, at their published sizes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import InputError, UnknownName
from workbench.frames.results import RANDOM_WEIGHTS
from workbench.models.checkpoints import load_weights
from workbench.models.from_hugging_face import fetcher, read_tokenizer
from workbench.models.source import ImageFormat, Source, read_state, require_file, seeded

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

_GPT2, _GPT2_TOKENS = "openai-community/gpt2", 50257


def check(kind: str, size: str, checkpoint: str | None) -> None:
    """Raise for a size that is not published, and for a file that is not there."""
    from workbench.models.architectures.published_models import PUBLISHED

    if size not in PUBLISHED[kind]:
        raise UnknownName(f"size of {kind}", size, PUBLISHED[kind])
    if checkpoint is not None:
        require_file(Path(checkpoint).expanduser())


def load(kind: str, size: str, checkpoint: str | None, pretrained: bool) -> Source:
    """ToST (``kind`` "tost") or CRATE ("crate") at a published size; `checkpoint` is a file of their authors'.

    Without a file the weights are random, as the checkpoint's name shows: none can be fetched.
    """
    from workbench.models.architectures import build
    from workbench.models.architectures.published_models import PUBLISHED

    check(kind, size, checkpoint)
    if checkpoint is None or not pretrained:
        if pretrained:
            warnings.warn(
                f"{kind}:{size} has random weights: none are published where they could be fetched from; give a "
                "file of them as checkpoint",
                stacklevel=3,
            )
        with seeded():
            module = build(dict(PUBLISHED[kind][size].architecture))
        checkpoint = RANDOM_WEIGHTS
    else:
        module = _with_file(kind, size, Path(checkpoint).expanduser())
    if hasattr(module, "max_length"):
        return _gpt2_reader(f"{kind}:{size}", module, checkpoint)
    return Source(module, kind, "image", checkpoint, _imagenet_format(crop=1.0 if kind == "tost" else 0.875))


def _with_file(kind: str, size: str, path: Path) -> nn.Module:
    from workbench.models.architectures import attention_of, build
    from workbench.models.architectures.published_models import PUBLISHED, fitting, take

    state = read_state(path, wrappings=("model", "state_dict"))  # not the averages beside them
    architecture = fitting(kind, size, state, str(path))
    with seeded():
        module = build(architecture)
    weights, left_out = take(PUBLISHED[kind][size], module, state, str(path))
    stored = next(value.dtype for value in weights.values() if value.is_floating_point())
    load_weights(module.to(stored), weights, str(path), attention=attention_of(architecture))
    if left_out:
        warnings.warn(f"{path}: {left_out}", stacklevel=4)
    return module


def _imagenet_format(crop: float) -> ImageFormat:
    """Images of 224×224 as these models were trained and tested on; ``crop`` is the central share kept."""
    from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, create_transform

    preprocess: Any = create_transform(
        224, interpolation="bicubic" if crop == 1 else "bilinear", crop_pct=crop
    )
    return ImageFormat((224, 224), 3, IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, preprocess)


def _gpt2_reader(what: str, module: Any, checkpoint: str | None) -> Source:
    """A language model trained on GPT-2's tokens."""
    vocabulary_size = module.get_input_embeddings().num_embeddings

    def tokenizer() -> PreTrainedTokenizerBase:
        if vocabulary_size < _GPT2_TOKENS:
            raise InputError(
                f"{what} with a vocabulary of {vocabulary_size} was not trained on GPT-2's {_GPT2_TOKENS} tokens: hand "
                "your input_ids to workbench.capture"
            )
        return read_tokenizer(fetcher(f"hf:{_GPT2}", _GPT2, False), f"hf:{_GPT2}", _GPT2, {})

    return Source(module, "tost", "text", checkpoint, max_length=module.max_length, load_tokenizer=tokenizer)
