"""The weights that project a layer's input to its heads, read off the attention module."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from workbench.attention.base import AttentionModule
from workbench.captures.layout import class_path, heads_of
from workbench.core.errors import InputError, UnknownName

PROJECTIONS = ("v", "q", "k")
_SEPARATE = {
    "q": ("q_proj", "query", "q", "q_lin", "to_q", "wq"),
    "k": ("k_proj", "key", "k", "k_lin", "to_k", "wk"),
    "v": ("v_proj", "value", "v", "v_lin", "to_v", "wv"),
}
_PACKED = ("q", "k", "v")  # the order of a joint projection in timm, torch and GPT-2


class Projection(NamedTuple):
    """What head k receives of a token z is zᵀ weight[k] + bias[k]; ``bias`` is None where there is none."""

    weight: Float[Tensor, "head width head_dim"]
    bias: Float[Tensor, "head head_dim"] | None

    def __call__(self, z: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch head token head_dim"]:
        """Tokens in every head, computed in the precision of ``z``."""
        w = z[:, None] @ self.weight.to(z)
        return w if self.bias is None else w + self.bias[:, None].to(z)


def head_projection(module: nn.Module, name: str = "v", path: str = "") -> Projection:
    """The projection that gives an attention module its ``q``, ``k`` or ``v``, head by head.

    A variant with one projection for everything (TSSA, MSSA) has that one whatever the name; symmetric
    attention has its keys for queries. With grouped queries ``k`` and ``v`` have fewer heads. Norms and rotary
    embeddings that follow are left out. Raises `UnknownName` for another name, `InputError` naming ``path`` for
    a module without that projection, or one that keeps it in an unknown place.
    """
    if name not in PROJECTIONS:
        raise UnknownName("projection", name, PROJECTIONS)
    weight, bias = _rows(module, name, path or "the module")
    head_dim = module.head_dim if isinstance(module, AttentionModule) else heads_of(path, module)[1]
    by_head = weight.detach().unflatten(0, (-1, head_dim)).mT
    return Projection(by_head, None if bias is None else bias.detach().unflatten(0, (-1, head_dim)))


def _rows(module: nn.Module, name: str, path: str) -> tuple[Tensor, Tensor | None]:
    """Weight (feature, width) and bias (feature) of one projection, the features of all heads in order."""
    if isinstance(module, AttentionModule):
        return _of_variant(module, name, path)
    if isinstance(module, nn.MultiheadAttention):
        return _of_torch(module, name)
    own_bias = getattr(module, f"{name}_bias", None)  # BEiT and EVA keep it beside the weights
    joint = getattr(module, "qkv", None)
    if isinstance(joint, nn.Linear) and class_path(module).startswith("timm."):
        return _part(joint.weight, name), own_bias if joint.bias is None else _part(joint.bias, name)
    joint = getattr(module, "c_attn", None)
    if joint is not None and class_path(module).startswith("transformers.models.gpt2."):
        return _part(joint.weight.mT, name), _part(joint.bias, name)
    for known in _SEPARATE[name]:
        layer = getattr(module, known, None)
        if isinstance(layer, nn.Linear):
            return layer.weight, own_bias if layer.bias is None else layer.bias
    raise InputError(
        f"{path}: where {class_path(module)} keeps its projection to {name} is not known; looked for qkv (timm), "
        f"in_proj_weight (torch), c_attn (GPT-2) and a linear layer {', '.join(_SEPARATE[name])}"
    )


def _of_variant(module: AttentionModule, name: str, path: str) -> tuple[Tensor, Tensor | None]:
    names = module.projections
    if len(names) > 1 and name not in names:
        if name != "q" or "k" not in names:
            raise InputError(
                f"{path}: {type(module).__name__} has no projection to {name}; it has {', '.join(names)}"
            )
        name = "k"
    place = names.index(name) if name in names else 0
    joint = module.qkv
    bias = None if joint.bias is None else joint.bias.chunk(len(names))[place]
    return joint.weight.chunk(len(names))[place], bias


def _of_torch(module: nn.MultiheadAttention, name: str) -> tuple[Tensor, Tensor | None]:
    joint = module.in_proj_weight
    weight = getattr(module, f"{name}_proj_weight") if joint is None else _part(joint, name)
    return weight, None if module.in_proj_bias is None else _part(module.in_proj_bias, name)


def _part(joint: Tensor, name: str) -> Tensor:
    return joint.chunk(len(_PACKED))[_PACKED.index(name)]
