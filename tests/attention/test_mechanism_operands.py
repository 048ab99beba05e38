"""Operands that do not fit one another are refused in words by every mechanism."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.attention.modules import randn
from workbench.attention.bilateral import (
    alibi_attention,
    bilateral_attention,
    nonlocal_attention,
    twicing_attention,
)
from workbench.attention.differential import differential_map
from workbench.attention.forgetting import forgetting_attention
from workbench.attention.gated import gated_attention
from workbench.attention.linformer import linformer_attention, linformer_map
from workbench.attention.nystrom import nystrom_attention, nystrom_map
from workbench.attention.primal import primal_features
from workbench.attention.rpc import rpc_attention
from workbench.attention.scaled import scaled_attention
from workbench.attention.sigmoid import sigmoid_attention
from workbench.attention.sink_logits import sink_attention
from workbench.attention.softmax import softmax_attention
from workbench.attention.softpick import softpick_attention
from workbench.attention.xca import cross_covariance_attention, unit_features
from workbench.core.errors import InputError

SHAPE = (2, 3, 5, 8)
POSITIONS = torch.zeros(3, 5, 8).double()
MECHANISMS = {
    "softmax": softmax_attention,
    "bilateral": functools.partial(bilateral_attention, position_q=POSITIONS, position_k=POSITIONS),
    "nonlocal": nonlocal_attention,
    "alibi": alibi_attention,
    "twicing": twicing_attention,
    "linformer": functools.partial(linformer_attention, mixture=torch.ones(3, 2, 5).double()),
    "linformer_map": functools.partial(linformer_map, mixture=torch.ones(3, 2, 5).double()),
    "nystrom": nystrom_attention,
    "nystrom_map": nystrom_map,
    "primal": primal_features,
    "rpc": functools.partial(rpc_attention, lambd=4.0),
    "scaled": functools.partial(scaled_attention, s=torch.ones(3, 5, 5).double()),
    "sigmoid": sigmoid_attention,
    "softpick": softpick_attention,
    "sink": sink_attention,
    "gated": functools.partial(gated_attention, gate=torch.ones(SHAPE).double()),
    "differential": functools.partial(
        differential_map, other_q=torch.ones(SHAPE).double(), other_k=torch.ones(SHAPE).double()
    ),
    "forgetting": functools.partial(forgetting_attention, log_forget=torch.zeros(2, 3, 5).double()),
    "xca": cross_covariance_attention,
    "xca_features": unit_features,
}
VALUES = {
    "softmax",
    "bilateral",
    "nonlocal",
    "alibi",
    "twicing",
    "linformer",
    "nystrom",
    "rpc",
    "scaled",
    "sigmoid",
    "softpick",
    "sink",
    "gated",
    "forgetting",
    "xca",
}
SHAPES = {
    "batch": (3, 3, 5, 8), "head": (2, 2, 5, 8), "token": (2, 3, 4, 8), "head_dim": (2, 3, 5, 6),
    "no batch": (3, 5, 8), "matrix": (5, 8), "vector": (8,), "number": (), "one more": (1, 2, 3, 5, 8),
    "no tokens": (2, 3, 0, 8), "no width": (2, 3, 5, 0),
}  # fmt: skip


def operands(name: str) -> dict[str, torch.Tensor]:
    return {operand: randn(*SHAPE) for operand in ("qkv" if name in VALUES else "qk")}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    ("name", "operand"), [(name, operand) for name in MECHANISMS for operand in operands(name)]
)
def test_one_operand_of_another_shape(name, operand, shape):
    tensors = operands(name)
    MECHANISMS[name](**tensors)
    tensors[operand] = randn(*shape)
    other_queries = operand == "q" and shape == SHAPES["token"] and name in ("softmax", "nonlocal")
    same_width = ("xca", "rpc", "linformer", "nystrom", "gated")
    if other_queries or (operand == "v" and shape == SHAPES["head_dim"] and name not in same_width):
        assert MECHANISMS[name](**tensors).shape == (*SHAPE[:2], tensors["q"].shape[2], tensors["v"].shape[3])
        return
    with pytest.raises(InputError, match=f"{operand} |shape"):
        MECHANISMS[name](**tensors)


def test_the_message_names_both_operands_and_the_axis():
    q, k = randn(2, 4, 5, 8), randn(2, 2, 5, 8)
    expected = (
        r"q and k must agree in axis head, got 4 and 2 in q \(2, 4, 5, 8\), k \(2, 2, 5, 8\), v .*repeat"
    )
    with pytest.raises(InputError, match=expected):
        softmax_attention(q, k, k)
