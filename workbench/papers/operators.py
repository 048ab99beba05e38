"""Operators for cost measurements: those of wu2025 and some more, and the sweeps of its Figures 1, 6, 7 and 8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

LAYERS = 12
FORWARD, BOTH = "forward", "forward + backward"
CONDITIONS = (FORWARD, BOTH)


@dataclass(frozen=True)
class Operator:
    """An attention operator: a variant of `workbench.attention` with options.

    ``eager`` forms the token × token matrix that the fused kernel of softmax attention avoids.
    """

    title: str
    variant: str
    options: Mapping[str, Any] = field(default_factory=dict)
    eager: bool = False


_CAUSAL = {"causal": True}
_AS_TRAINED = {"convention": "as_implemented"}

OPERATORS: dict[str, Operator] = {
    "softmax": Operator("softmax attention, fused kernel", "softmax"),
    "softmax-eager": Operator("softmax attention, token × token matrix formed", "softmax", eager=True),
    "softmax-sym": Operator("symmetric softmax attention, fused kernel", "softmax-sym"),
    "mssa": Operator("subspace attention of CRATE, fused kernel", "mssa"),
    "xca": Operator("cross-covariance attention of XCiT", "xca"),
    "tssa": Operator("token statistics attention of ToST, as trained", "tssa", _AS_TRAINED),
    "primal": Operator("Primal-Attention, 32 directions, without its penalty", "primal", {"low_rank": 32}),
    "softmax-causal": Operator("causal softmax attention, fused kernel", "softmax", _CAUSAL),
    "softmax-eager-causal": Operator("causal softmax attention, matrix formed", "softmax", _CAUSAL, True),
    "tssa-causal": Operator("causal token statistics attention, as trained", "tssa-causal", _AS_TRAINED),
}
_EVERY_TOKEN = tuple(name for name in OPERATORS if not name.endswith("-causal"))
_EARLIER_TOKENS = tuple(name for name in OPERATORS if name.endswith("-causal"))


@dataclass(frozen=True)
class Point:
    """One operator at one size: ``LAYERS`` attention layers, each with its projections, on one sequence."""

    sweep: str
    operator: str
    heads: int
    width: int
    tokens: int
    layers: int = LAYERS

    @property
    def name(self) -> str:
        """Return the name of the point's file."""
        return f"{self.sweep}-{self.operator}-{self.width}x{self.tokens}"


@dataclass(frozen=True)
class Sweep:
    """A figure of wu2025: the axis along which ``sizes`` run, and the fixed size of the other."""

    figure: str
    axis: Literal["tokens", "width"]
    sizes: tuple[int, ...]
    operators: tuple[str, ...]
    heads: int
    fixed: int

    def point(self, name: str, operator: str, size: int) -> Point:
        """Return the operator at a size of the axis; ``name`` is that of the sweep."""
        sizes = {"tokens": self.fixed, "width": self.fixed} | {self.axis: size}
        return Point(name, operator, self.heads, sizes["width"], sizes["tokens"])


def _doubled(first: int, last: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(first.bit_length() - 1, last.bit_length()))


SWEEPS: dict[str, Sweep] = {
    "tokens": Sweep(
        "Figures 1 and 6, left", "tokens", _doubled(256, 32768), _EVERY_TOKEN, heads=8, fixed=384
    ),
    "width": Sweep("Figure 6, right", "width", _doubled(64, 1024), _EVERY_TOKEN, heads=8, fixed=4096),
    "wide": Sweep("Figure 7", "tokens", _doubled(64, 512), _EVERY_TOKEN, heads=32, fixed=4096),
    "causal": Sweep("Figure 8", "tokens", _doubled(256, 8192), _EARLIER_TOKENS, heads=12, fixed=768),
}
"""On a CPU the sizes end where a pass of most operators takes tens of seconds."""
