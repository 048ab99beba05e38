"""Which variants weights may belong to, from only their names and shapes, for errors that say what arrived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from workbench.attention import VARIANTS, attention_module

_JOINT = "qkv.weight"
# Biases are an option of every variant, and positions that layers share may be stored with one of them only.
_OPTIONAL = {"qkv.bias", "proj.bias", "positions"}


class Recognised(NamedTuple):
    """The weights of one layer, and the variants that have such.

    ``width`` is the width of the attended tokens; ``form`` their other names, and how many projections ``qkv`` holds.
    """

    width: int
    form: tuple[frozenset[str], float]
    variants: tuple[str, ...]


def recognise_attention(state: Mapping[str, Tensor]) -> dict[str, Recognised]:
    """The attention layers of a ``state`` dict by module path, in its order.

    Variants that have the same weights cannot be distinguished (softmax and twicing, for example): all are named,
    none where nothing in the table has such weights.
    """
    return {
        name.removesuffix(f".{_JOINT}"): _recognise(name.removesuffix(_JOINT), state)
        for name, value in state.items()
        if name.endswith(f".{_JOINT}") and value.ndim == 2
    }


def module_variants(module: nn.Module, possible: Iterable[str]) -> tuple[str, ...]:
    """Those of the ``possible`` variants whose class ``module`` has; timm's own attention is softmax."""
    from workbench.core.light_timm import timm

    if isinstance(module, timm.layers.Attention):
        return tuple(name for name in possible if name == "softmax")
    return tuple(name for name in possible if VARIANTS[name].module is type(module))


def _recognise(prefix: str, state: Mapping[str, Tensor]) -> Recognised:
    rows, width = state[prefix + _JOINT].shape
    names = frozenset(name.removeprefix(prefix) for name in state if name.startswith(prefix)) - _OPTIONAL
    form = names, rows / width
    return Recognised(width, form, tuple(name for name, forms in _forms().items() if form in forms))


@cache
def _forms() -> dict[str, set[tuple[frozenset[str], float]]]:
    """The variants that weights may belong to: in layer 0, and in later ones."""
    forms: dict[str, set[tuple[frozenset[str], float]]] = {}
    with torch.device("meta"):
        for name in VARIANTS:
            for layer in (0, 1):
                module = attention_module(name, 2, 1, num_tokens=1, layer=layer)
                names = frozenset(module.state_dict()) - _OPTIONAL
                forms.setdefault(name, set()).add((names, len(module.projections)))
    return forms
