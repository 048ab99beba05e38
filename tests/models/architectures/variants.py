"""What the tests of the architectures share; how many parameters each variant has more than softmax attention."""

from __future__ import annotations

import torch

LOW_RANK = 4
OPTIONS = {name: {"low_rank": LOW_RANK} for name in ("primal", "primal-independent", "primal-causal")}


def more_than_softmax(name: str, dim: int, heads: int, tokens: int) -> int:
    """Softmax attention has W_q, W_k, W_v and the output projection, each dim² + dim."""
    projection, head_dim = dim * dim + dim, dim // heads
    if name.startswith("primal"):
        reads = min(tokens, 10 * LOW_RANK) if name == "primal" else head_dim
        weights = 2 * heads * reads * LOW_RANK + heads * LOW_RANK  # W_e and W_r, and Λ
        return weights + (2 * LOW_RANK + 1) * head_dim - projection
    return {
        "softmax-sym": -projection,
        "rpc-sym": -projection,
        "rpc-sym-asym": -projection,  # in its robust layers: num_iter = (4,) is layer 0
        "scaled-free": heads * tokens**2,
        "scaled-alpha": 1,
        "tssa": heads - 2 * projection,
        "tssa-causal": heads + heads * tokens - 2 * projection,
        "mssa": -2 * projection,
        "xca": heads,
        "bilateral": 2,
        "nonlocal": 1,
        "linformer": heads * 64 * tokens,
        "softmax-qk-norm": 2 * head_dim,
        "softmax-learned-sink": heads,
        "gated": projection,
        "differential": 2 * projection + 5 * head_dim,  # four vectors of λ, and a gain
        "forgetting": heads * (dim + 1),
    }.get(name, 0)


def moved(model: torch.nn.Module) -> torch.nn.Module:
    """The model with every parameter off the special value it starts at."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
