"""The weights that project a layer's input to its heads, read off the attention module."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.attention.base import merge_heads
from workbench.captures.family import Rows, class_path, declared
from workbench.captures.layer_records import LayerRecord
from workbench.captures.layout import block_path, heads_of, module_of
from workbench.core.errors import InputError, UnknownName

PROJECTIONS = ("v", "q", "k")
PROJ_OUT = "proj_out"
"""The output of the projection W_O that mixes the heads, before any layer scale, norm or residual."""
_SEPARATE = {
    "q": ("q_proj", "query", "q", "q_lin", "to_q", "wq"),
    "k": ("k_proj", "key", "k", "k_lin", "to_k", "wk"),
    "v": ("v_proj", "value", "v", "v_lin", "to_v", "wv"),
}


class Projection(NamedTuple):
    """The projection of a token z to head k, zᵀ weight[k] + bias[k]; ``bias`` is None where there is none."""

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
    head_dim = heads_of(path, module)[1]
    by_head = weight.detach().unflatten(0, (-1, head_dim)).mT
    return Projection(by_head, None if bias is None else bias.detach().unflatten(0, (-1, head_dim)))


def _rows(module: nn.Module, name: str, path: str) -> Rows:
    for read in declared("projections", type(module)):
        rows = read(module, name, path)
        if rows is not None:
            return rows
    for attribute in _SEPARATE[name]:
        layer = getattr(module, attribute, None)
        if isinstance(layer, nn.Linear):
            return layer.weight, layer.bias
    raise InputError(
        f"{path}: where {class_path(module)} keeps its projection to {name} is not known; looked for a linear layer "
        f"{', '.join(_SEPARATE[name])}; declare it in workbench.captures.Family(projections=…)"
    )


class OutputProjection(NamedTuple):
    """The projection W_O of a layer, Σ_k z_k weight[k] + bias of the outputs z_k of its heads; ``bias`` may be None."""

    weight: Float[Tensor, "head head_dim width"]
    bias: Float[Tensor, " width"] | None

    def __call__(
        self, head_out: Float[Tensor, "batch head token head_dim"]
    ) -> Float[Tensor, "batch head token width"]:
        """Return what every head writes; the sum over heads, plus the bias, is the output of the projection."""
        return head_out @ self.weight.to(head_out)


def output_projection(model: Any, record: LayerRecord) -> OutputProjection:
    """Return the output projection W_O of a layer that was captured with the site proj_out, head by head.

    ``model`` is the result of ``load``, or the module. Raises `InputError` where no linear layer makes the recorded
    proj_out of the recorded outputs of the heads.
    """
    if record.head_out is None or PROJ_OUT not in record.extra:
        raise InputError(f"{record.title} holds no {PROJ_OUT}; capture it with sites=[{PROJ_OUT!r}]")
    model = module_of(model)
    heads, target = merge_heads(record.head_out).float(), record.extra[PROJ_OUT]
    bound = 1e-3 if target.dtype in (torch.float32, torch.float64) else 2e-2
    for child in model.get_submodule(projecting_module(model, record.path)).modules():
        weight = linear_weight(child)
        if weight is None or weight.shape != (heads.shape[-1], target.shape[-1]):
            continue
        weight, bias = weight.detach(), getattr(child, "bias", None)
        output = heads @ weight.float()
        output = output if bias is None else output + bias.detach().float()
        if (output - target).abs().max() <= bound * target.abs().max():
            by_head = weight.unflatten(0, (record.head_out.shape[1], -1))
            return OutputProjection(by_head, None if bias is None else bias.detach())
    raise InputError(
        f"{record.title}: no linear layer makes its {PROJ_OUT} of the outputs of its heads; quantised weights and "
        "adapters such as LoRA are not read: merge them into the weights first"
    )


def projecting_module(model: nn.Module, path: str) -> str:
    """Return the path of the module that holds the attention at ``path`` and its output projection."""
    block = block_path(model, path)
    return path.rpartition(".")[0] if block is None else block


def linear_weight(module: nn.Module) -> Tensor | None:
    """Return the weight (feature, width) of a linear layer; None of any other module."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    if isinstance(module, nn.Linear):
        return weight.mT
    return weight if type(module).__name__ == "Conv1D" else None  # GPT-2's, which transformers stores so


_OUTPUTS = ("out_proj", "o_proj", "c_proj", "proj", "out_lin", "o", "wo", "dense", "to_out", "to_out.0")


def output_weight(model: Any, path: str, features: int) -> Float[Tensor, "feature width"]:
    """Return the output projection W_O of the attention at ``path``, found by its name, without running the model.

    ``features`` is its number of inputs, heads × head_dim. Raises `InputError` where no linear layer of that size has
    one of the usual names, in the module or beside it.
    """
    model = module_of(model)
    parent = path.rpartition(".")[0]
    for owner, prefix in ((path, ""), (parent, ""), (parent, "output.")):
        for name in _OUTPUTS:
            child = dict(model.get_submodule(owner).named_modules()).get(prefix + name)
            weight = None if child is None else linear_weight(child)
            if weight is not None and len(weight) == features:
                return weight.detach()
    module = class_path(model.get_submodule(path))
    raise InputError(
        f"{path}: where {module} keeps its output projection is not known; looked for a linear layer of {features} "
        f"inputs called {', '.join(_OUTPUTS)}"
    )
