"""The weights that project a layer's input to its heads, read off the attention module."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from workbench.captures.family import Rows, class_path, declared
from workbench.captures.layout import heads_of
from workbench.core.errors import InputError, UnknownName

PROJECTIONS = ("v", "q", "k")
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
