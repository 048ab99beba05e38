"""The user's modules: the module itself, or a function that makes it (``py:package.module:function``)."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import InputError
from workbench.models.source import ImageFormat, Source, first_lines, fitting_state, read_state, seeded

if TYPE_CHECKING:
    from torch import nn

TRUST = "WORKBENCH_TRUST"
"""The variable that lists trusted functions, ``module:function`` and blanks between; ``--trust`` sets it."""


def trust_specs(specs: Any) -> None:
    """Trust the functions that these ``py:`` specs name, in this process and those that it starts."""
    names = [spec[3:].partition("?")[0].partition("@")[0] for spec in specs if str(spec).startswith("py:")]
    os.environ[TRUST] = " ".join(dict.fromkeys([*os.environ.get(TRUST, "").split(), *names]))


def check(name: str, trust: bool = False) -> None:
    """Raise `InputError` for a spec that names no function, and for a function that is not trusted."""
    module, colon, function = name.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), function]):
        raise InputError(f"py:{name} names no function; write py:package.module:function")
    if not trust and name not in os.environ.get(TRUST, "").split():
        raise InputError(
            f"py:{name} runs code: load it with workbench.load(…, trust=True) and give the model, or add --trust on "
            "the command line"
        )


def load(name: str, weights: str | None, options: Mapping[str, Any], trust: bool) -> Source:
    """Call a function for its module, or for what `workbench.wrap` makes of it; ``weights`` is a file for the module.

    The module is looked up in the working folder too.
    """
    from workbench.models.checkpoints import load_weights

    check(name, trust)
    where, _, function = name.partition(":")
    sys.path.append(os.getcwd())
    try:
        make = getattr(importlib.import_module(where), function)
        with seeded():
            result = make(**options)
    except Exception as error:  # the user's code fails in whatever way it does
        raise InputError(
            f"py:{name} cannot be loaded: {type(error).__name__}: {first_lines(error)}"
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    source = _source_of(result, f"py:{name}")
    if weights is not None:
        path = Path(weights).expanduser()
        state = fitting_state(read_state(path), source.module.state_dict(), path)
        load_weights(source.module, state, str(path))
        source.checkpoint = weights
    return source


def _source_of(result: Any, what: str) -> Source:
    import torch

    if isinstance(result, torch.nn.Module):
        return described(result)
    if not hasattr(result, "module") or not hasattr(result, "modality"):
        raise InputError(
            f"{what} gives a {type(result).__name__}; a torch module, or workbench.wrap(…), is needed"
        )
    return Source(
        result.module, result.family, result.modality, result.checkpoint, result.image, result.max_length,
        result._load_tokenizer, result._load_processor,
    )  # fmt: skip


def described(
    module: nn.Module, like: Source | None = None, transform: Any = None, tokenizer: Any = None
) -> Source:
    """Return a module with its inputs: those of ``like``, of a transform of images, or of a tokenizer.

    Without any, those of a module of timm or transformers are known; another takes tensors only.
    """
    family = type(module).__name__.lower() if like is None else like.family
    if transform is not None:
        return Source(module, family, "image", image=_format_of(transform))
    if tokenizer is not None:
        return _reader(module, family, tokenizer)
    if like is not None:
        return Source(
            module,
            family,
            like.modality,
            None,
            like.image,
            like.max_length,
            like.load_tokenizer,
            like.load_processor,
        )
    if hasattr(module, "pretrained_cfg"):
        from workbench.models.from_timm import image_format

        return Source(module, family, "image", image=image_format(module))
    return Source(module, family, "other")


def _reader(module: nn.Module, family: str, tokenizer: Any) -> Source:
    from workbench.models.from_hugging_face import position_limit, ready_to_pad

    if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise InputError(f"tokenizer is one of transformers; got a {type(tokenizer).__name__}")
    tokenizer = deepcopy(tokenizer)  # yours stays as it is
    ready_to_pad(tokenizer)
    config = getattr(module, "config", None)
    in_transformers = hasattr(config, "get_text_config")
    limit = position_limit(module, config) if in_transformers else getattr(module, "max_length", None)
    return Source(module, family, "text", max_length=limit, load_tokenizer=lambda: tokenizer)


def _format_of(transform: Callable[[Any], Any]) -> ImageFormat:
    """Find what a transform makes of an image: its size, channels, and the normalisation that it ends with."""
    import torch
    from PIL import Image

    try:
        tensor = transform(Image.new("RGB", (64, 48)))
    except Exception as error:  # the user's code fails in whatever way it does
        raise InputError(
            f"transform fails on a PIL image: {type(error).__name__}: {first_lines(error)}"
        ) from error
    if not isinstance(tensor, torch.Tensor) or tensor.ndim != 3 or not tensor.is_floating_point():
        shape = tuple(getattr(tensor, "shape", ()))
        raise InputError(
            f"transform makes a float tensor (channel, height, width) of a PIL image; got "
            f"{type(tensor).__name__} {shape}"
        )
    channels, height, width = tensor.shape
    steps = [step for step in getattr(transform, "transforms", [transform]) if hasattr(step, "mean")]
    mean, std = ((0.0,), (1.0,)) if not steps else (_numbers(steps[-1].mean), _numbers(steps[-1].std))
    spread = [values * channels if len(values) == 1 else values for values in (mean, std)]
    return ImageFormat((height, width), channels, spread[0], spread[1], transform)


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in (values if hasattr(values, "__len__") else [values]))
