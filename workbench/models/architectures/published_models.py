"""The models of wu2025 and CRATE at their published sizes, and how their authors name the weights.

Files of theirs are read without any code of theirs: ``take`` puts a state dict under the names of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from timm.models.xcit import Xcit, checkpoint_filter_fn
from torch import Tensor, nn

from workbench.core.errors import InputError
from workbench.core.options import ranges


@dataclass(frozen=True)
class Published:
    """One size: what ``build`` takes, and the authors' names."""

    architecture: Mapping[str, Any]
    names: tuple[tuple[str, str], ...]
    """Ours → theirs: regular expressions, applied one after the other to a name of ours."""
    layer: str
    """Prefix of a layer's number in the authors' names."""
    embedding: str
    """Their name of a tensor whose last axis is the model's width."""

    def theirs(self, name: str) -> str:
        """Return the authors' name of the weight ``name``."""
        for pattern, replacement in self.names:
            name = re.sub(pattern, replacement, name)
        return name

    def describe(self, state: Mapping[str, Tensor]) -> tuple[int, int] | None:
        """(width, depth) of a state dict under the authors' names; None where it has no such names."""
        width = state[self.embedding].shape[-1] if self.embedding in state else None
        layers = [int(match[1]) for name in state if (match := re.match(rf"{self.layer}(\d+)\.", name))]
        return None if width is None or not layers else (width, max(layers) + 1)


def _tost(width: int, depth: int, heads: int, layer_scale: float) -> Published:
    architecture = {
        "name": "tost",
        "img_size": 224,
        "patch_size": 16,
        "in_chans": 3,
        "num_classes": 1000,
        "embed_dim": width,
        "depth": depth,
        "num_heads": heads,
        "layer_scale": layer_scale,
        "attention": "tssa",
        "attention_options": {"convention": "as_implemented"},
    }
    # timm renames the rest: the positions, and the joint projections of class attention.
    names = (
        (r"^(blocks\.\d+)\.ls(\d)\.gamma", r"\1.gamma\2"),
        (r"^(blocks\.\d+\.attn)\.proj", r"\1.to_out.0"),
    )
    return Published(architecture, names, r"blocks\.", "cls_token")


def _tost_lm(width: int, depth: int, heads: int, layer_scale: float) -> Published:
    architecture = {
        "name": "lm",
        "vocabulary": 50257,
        "context": 1024,
        "embed_dim": width,
        "depth": depth,
        "num_heads": heads,
        "layer_scale": layer_scale,
        "norm_eps": 1e-5,
        "attention": "tssa-causal",
        "attention_options": {"convention": "as_implemented"},
    }
    names = (
        (r"^embed\.", "transformer.wte."),
        (r"^pos_embed$", "transformer.wpe.weight"),
        (r"^norm\.", "transformer.ln_f."),
        (r"^blocks\.", "transformer.h."),
        (r"\.ls(\d)\.gamma$", r".gamma\1"),
        (r"\.norm(\d)\.", r".ln_\1."),
        (r"\.(attn|mlp)\.(proj|fc2)\.", r".\1.c_proj."),
        (r"\.attn\.qkv\.", ".attn.c_attn."),
        (r"\.mlp\.fc1\.", ".mlp.c_fc."),
    )
    return Published(architecture, names, r"transformer\.h\.", "transformer.wte.weight")


def _crate(width: int, heads: int) -> Published:
    architecture = {
        "name": "crate",
        "img_size": 224,
        "patch_size": 16,
        "in_chans": 3,
        "num_classes": 1000,
        "embed_dim": width,
        "depth": 12,
        "num_heads": heads,
    }
    layer = "transformer.layers."
    names = (
        (r"^patch_embed\.norm1\.", "to_patch_embedding.1."),
        (r"^patch_embed\.proj\.", "to_patch_embedding.2."),
        (r"^patch_embed\.norm2\.", "to_patch_embedding.3."),
        (r"^pos_embed$", "pos_embedding"),
        (r"^blocks\.(\d+)\.norm1\.", layer + r"\1.0.norm."),
        (r"^blocks\.(\d+)\.attn\.qkv\.", layer + r"\1.0.fn.qkv."),
        (r"^blocks\.(\d+)\.attn\.proj\.", layer + r"\1.0.fn.to_out.0."),
        (r"^blocks\.(\d+)\.norm2\.", layer + r"\1.1.norm."),
        (r"^blocks\.(\d+)\.mlp\.dictionary$", layer + r"\1.1.fn.weight"),
        (r"^norm\.", "mlp_head.0."),
        (r"^head\.", "mlp_head.1."),
    )
    return Published(architecture, names, r"transformer\.layers\.", "cls_token")


PUBLISHED: dict[str, dict[str, Published]] = {
    "tost": {
        "tiny": _tost(192, 12, 4, 1.0),
        "small": _tost(384, 12, 8, 1.0),
        "medium": _tost(512, 24, 8, 1e-5),
        "base-lm": _tost_lm(768, 12, 12, 1.0),
        "medium-lm": _tost_lm(1024, 24, 16, 1e-5),
        "large-lm": _tost_lm(1280, 36, 20, 1e-5),
    },
    "crate": {"tiny": _crate(384, 6), "small": _crate(576, 12)},
}
"""Kind → size: wu2025 Tables 5 and 6, and the two smaller ones of Yu et al. 2023."""


def fitting(kind: str, size: str, state: Mapping[str, Tensor], origin: str) -> dict[str, Any]:
    """The architecture that the authors' ``state`` needs.

    That of the size, for texts with the file's own vocabulary and context.

    Raises InputError naming both sizes if the weights are of another size.
    """
    published = PUBLISHED[kind][size]
    architecture = dict(published.architecture)
    wanted = architecture["embed_dim"], architecture["depth"]
    shape = published.describe(state)
    if shape is not None and shape != wanted:
        same = [f"{kind}:{name}" for name, other in PUBLISHED[kind].items() if _shape(other, state) == shape]
        named = f"; load it as {same[0]}" if same else ""
        raise InputError(
            f"{origin} holds weights of width {shape[0]} and depth {shape[1]}, and {kind}:{size} is of width "
            f"{wanted[0]} and depth {wanted[1]}{named}"
        )
    if shape is not None and architecture["name"] == "lm":
        architecture["vocabulary"] = len(state["transformer.wte.weight"])
        if "transformer.wpe.weight" in state:
            architecture["context"] = len(state["transformer.wpe.weight"])
    return architecture


def _shape(published: Published, state: Mapping[str, Tensor]) -> tuple[int, int] | None:
    """(width, depth) of ``state`` if it is of this size."""
    shape = published.describe(state)
    return shape if shape == (published.architecture["embed_dim"], published.architecture["depth"]) else None


def take(
    published: Published, module: nn.Module, state: Mapping[str, Tensor], origin: str
) -> tuple[dict[str, Tensor], str | None]:
    """The authors' ``state`` under the names of ``module``, and in words what of it was left out.

    A head for another number of classes is left out: the module keeps its own. Raises InputError
    that names every weight that is missing and every one that is not part of the model, by the authors' names.
    """
    initial_state = module.state_dict()
    renamed = {published.theirs(name): name for name in initial_state}
    prepared = (
        _as_timm(module, state, origin) if isinstance(module, Xcit) else _untied(dict(state), renamed, origin)
    )
    missing = [name for name in renamed if name not in prepared]
    surplus = [name for name in prepared if name not in renamed]
    problems = [
        f"{text} {by_layer(names)}"
        for text, names in (("it lacks", missing), ("not part of the model are", surplus))
        if names
    ]
    if problems:
        raise InputError(f"{origin} does not fit: {'; '.join(problems)}")
    renamed_state = {renamed[name]: value for name, value in prepared.items()}
    if "pos_embed" in renamed_state and renamed_state["pos_embed"].ndim == 2:
        renamed_state["pos_embed"] = renamed_state["pos_embed"][None]
    return renamed_state, _without_other_head(renamed_state, initial_state)


def _as_timm(module: nn.Module, state: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    try:
        return checkpoint_filter_fn(dict(state), module)
    except KeyError as error:  # it splits the joint projections of all class attention or of none
        raise InputError(f"{origin} does not fit: it lacks {error.args[0]}") from error


def _untied(state: dict[str, Tensor], renamed: Mapping[str, str], origin: str) -> dict[str, Tensor]:
    """Without the head that is the embedding again; with biases of zero where a language model has none at all."""
    embedding, head = state.get("transformer.wte.weight"), state.get("lm_head.weight")
    if embedding is None:
        return state
    if head is not None:
        if not torch.equal(head, embedding):
            raise InputError(
                f"{origin}: lm_head.weight is not transformer.wte.weight again, and the head of these models is"
            )
        del state["lm_head.weight"]
    if not any(name.endswith(".bias") for name in state):
        state |= {
            name: torch.zeros(len(state[weight]))
            for name in renamed
            if name.endswith(".bias") and (weight := f"{name.removesuffix('bias')}weight") in state
        }
    return state


def _without_other_head(renamed_state: dict[str, Tensor], initial_state: Mapping[str, Tensor]) -> str | None:
    """Keep the module's own head if the file's has another number of classes; return a note about it."""
    if "head.weight" not in renamed_state or len(renamed_state["head.weight"]) == len(
        initial_state["head.weight"]
    ):
        return None
    sizes = len(renamed_state["head.weight"]), len(initial_state["head.weight"])
    renamed_state |= {name: initial_state[name] for name in ("head.weight", "head.bias")}
    return (
        f"its head has {sizes[0]} classes and the model's {sizes[1]}: it was left out, and the model's head is "
        "random; use what lies before it"
    )


def by_layer(names: Iterable[str]) -> str:
    """Names in a list, those that differ in the number of their layer together: blocks.0-11.gamma3."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = re.match(r"(.*?)\.(\d+)\.(.*)", name)
        key = (f"{match[1]}.", f".{match[3]}") if match else (name, "")
        numbers.setdefault(key, []).extend([int(match[2])] if match else [])
    return ", ".join(
        f"{start}{ranges(indices).replace(' ', '') if indices else ''}{end}"
        for (start, end), indices in numbers.items()
    )
