"""Architectures built here, each from a dict that fits in JSON: a checkpoint says how to rebuild itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

from workbench.core.errors import InputError, UnknownName
from workbench.core.light_timm import timm  # noqa: F401  # before the files here import parts of it
from workbench.core.options import accept
from workbench.models.architectures.crate import build_crate
from workbench.models.architectures.decision import build_decision
from workbench.models.architectures.fan import build_fan
from workbench.models.architectures.lm import build_lm
from workbench.models.architectures.segmenter import build_segmenter
from workbench.models.architectures.sequence import build_sequence
from workbench.models.architectures.tost import build_tost, build_xcit
from workbench.models.architectures.vit import build_vit
from workbench.models.catalog import ATTENTION_KEYS

if TYPE_CHECKING:
    from torch import nn

ARCHITECTURES: dict[str, Callable[..., nn.Module]] = {
    "vit": build_vit,
    "lm": build_lm,
    "sequence": build_sequence,
    "decision": build_decision,
    "segmenter": build_segmenter,
    "tost": build_tost,
    "xcit": build_xcit,
    "crate": build_crate,
    "fan": build_fan,
}

__all__ = [
    "ARCHITECTURES",
    "ATTENTION_KEYS",
    "attention_of",
    "build",
    "build_crate",
    "build_decision",
    "build_fan",
    "build_lm",
    "build_segmenter",
    "build_sequence",
    "build_tost",
    "build_vit",
    "build_xcit",
]


def attention_of(architecture: Mapping[str, Any]) -> str:
    """The attention variant that a description names, or that its architecture has where it names none.

    Softmax for unknown architectures.
    """
    builder = ARCHITECTURES.get(str(architecture.get("name")), build_vit)
    return architecture.get("attention", inspect.signature(builder).parameters["attention"].default)


def build(architecture: dict[str, Any]) -> nn.Module:
    """The module that ``{"name": "vit", **options}`` describes, with fresh random weights.

    Raises UnknownName for a name or an option that does not exist, InputError for values that do not fit
    together.
    """
    if not isinstance(architecture, dict) or not isinstance(architecture.get("name"), str):
        raise InputError(
            f'an architecture is a table with a "name" ({", ".join(ARCHITECTURES)}), got {architecture!r}'
        )
    options = dict(architecture)
    name = options.pop("name")
    if name not in ARCHITECTURES:
        raise UnknownName("architecture", name, ARCHITECTURES)
    builder = ARCHITECTURES[name]
    accepted = get_type_hints(getattr(builder, "func", builder), include_extras=True)  # some are partial
    del accepted["return"]
    for option, value in options.items():
        if option not in accepted:
            raise UnknownName(f"option of architecture {name!r}", option, accepted)
        try:
            accept(accepted[option], value)
        except ValueError as error:
            raise InputError(f"{option} of architecture {name!r} must be {error}; got {value!r}") from None
    return builder(**options)
