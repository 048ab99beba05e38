"""The sparsifying half of a CRATE layer (Yu et al. 2023): one step of ISTA instead of the MLP.

wu2025 (Table 8) compares it with the MLP inside ToST.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.models.vision_transformer import Block
from torch import Tensor, nn


def ista_step(
    x: Float[Tensor, "*batch dim"],
    dictionary: Float[Tensor, "dim dim"],
    *,
    step: float = 0.1,
    threshold: float = 0.1,
) -> Float[Tensor, "*batch dim"]:
    """ReLU(x + η Dᵀ(x − D x) − η λ), D the ``dictionary``, η the ``step``, λ the ``threshold``.

    One proximal gradient step, from x itself, towards a sparse and non-negative code of x in D. D acts on the
    last axis, the features of a token.
    """
    return F.relu(x + step * (x - x @ dictionary.mT) @ dictionary - step * threshold)


class Ista(nn.Module):
    """``ista_step`` with a learned dictionary; η and λ are fixed, by default 0.1 each, as published."""

    def __init__(self, dim: int, *, step: float = 0.1, threshold: float = 0.1) -> None:
        super().__init__()
        self.step, self.threshold = step, threshold
        self.dictionary = nn.Parameter(torch.empty(dim, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.dictionary)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        return ista_step(x, self.dictionary, step=self.step, threshold=self.threshold)


class IstaBlock(Block):
    """timm's block whose second half is x ← ISTA(norm x), as in CRATE: no residual but the one inside ISTA."""

    def __init__(self, dim: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(dim, *args, **kwargs)
        self.mlp = Ista(dim)
        self.ls2 = self.drop_path2 = nn.Identity()  # they belong to a residual branch

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        update = self.attn(self.norm1(x), attn_mask=attn_mask, is_causal=is_causal)
        x = x + self.drop_path1(self.ls1(update))
        return self.mlp(self.norm2(x))
