"""How a trained variant of attention looks, the same in every figure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workbench.core.errors import UnknownName


@dataclass(frozen=True)
class Look:
    """A variant's words in a legend, and its line and marker."""

    label: str
    colour: str
    dash: str

    @property
    def style(self) -> dict:
        """Line and marker as `go.Scatter` takes them."""
        line = {"color": self.colour, "dash": self.dash}
        return {"line": line, "marker": {"color": self.colour, "symbol": "circle", "line": {"width": 0}}}


def _boosted(look: Look, colour: str) -> Look:
    """Return the look of the same attention with boosted residuals: dotted, in a darker form of its hue."""
    return Look(f"{look.label} + boost", colour, "dot")


# Colours chosen from Paul Tol's schemes by their least distance (CIELAB) with normal and three kinds of deficient
# sight; relatives share a hue: symmetric ones, RPC and MSSA (whose q, k and v are one) blue, Scaled Attention red.
_SOFTMAX = Look("softmax", "#000000", "solid")
_TSSA = Look("token statistics", "#66CCEE", "solid")
_PRIMAL = Look("Primal", "#777733", "dashdot")
_BILATERAL = Look("bilateral", "#DDAA33", "solid")

LOOKS: dict[str, Look] = {
    "softmax": _SOFTMAX,
    "softmax-eager": Look("softmax, eager", "#000000", "dash"),
    "softmax+boost": _boosted(_SOFTMAX, "#6633FF"),
    "softmax-sym": Look("symmetric softmax", "#4477AA", "dash"),
    "rpc-sym": Look("symmetric RPC", "#004488", "solid"),
    "rpc-asym": Look("asymmetric RPC", "#4477AA", "dashdot"),
    "rpc-sym-asym": Look("symmetric RPC, then softmax", "#004488", "dot"),
    "scaled-free": Look("Scaled (S free)", "#882255", "solid"),
    "scaled-alpha": Look("Scaled (S = αA)", "#EE6677", "dash"),
    "bilateral": _BILATERAL,
    "bilateral+boost": _boosted(_BILATERAL, "#5C3100"),
    "mssa": Look("subspace (MSSA)", "#4477AA", "dot"),
    "xca": Look("cross-covariance", "#AA44DD", "dashdot"),
    "tssa": _TSSA,
    "tssa-causal": _TSSA,
    "primal": _PRIMAL,
    "primal-causal": _PRIMAL,
}
"""Attention, as records name it ("+boost" at its end), to its look, in the order of figures."""

MECHANISMS = {
    "vit": "softmax ViT", "xcit": "XCiT", "tost": "ToST", "tost-ista": "ToST, ISTA",
    "tost-text": "ToST, not normalised", "tost-ista-text": "ToST, ISTA, not normalised",
    "softmax-shuffled": "softmax, tokens shuffled",
    "rpc-sym-tuned": "symmetric RPC in fine-tuning", "rpc-asym-tuned": "asymmetric RPC in fine-tuning",
    "rpc-sym-n5": "symmetric RPC, n = 5", "rpc-sym-n6": "symmetric RPC, n = 6",
    "rpc-sym-all": "symmetric RPC, n = 2 in all layers", "rpc-sym-implemented": "symmetric RPC, λμ",
    "rpc-sym-iterated": "symmetric RPC, nothing sparse",
    "primal-all": "Primal, all layers", "primal-e": "Primal, only e",
    "primal-all-e": "Primal, all layers, only e", "primal-independent": "Primal, data-independent",
    **{f"primal-causal s={rank}": f"causal Primal, s = {rank}" for rank in (8, 16, 64)},
    "alibi": "ALiBi", "linformer": "Linformer", "nystrom": "Nyströmformer",
    "softmax-qk-norm": "softmax, q and k normalised", "softmax-off-by-one": "softmax off by one",
    "softmax-learned-sink": "softmax, learned sink", "softpick": "softpick", "sigmoid": "sigmoid",
    "gated": "gated softmax", "differential": "differential", "forgetting": "forgetting",
}  # fmt: skip
"""Mechanisms without a look, to their words."""


def look_of(attention: str) -> Look:
    """The look of an attention variant as a record names it.

    Raises `UnknownName` for one that has none.
    """
    if attention not in LOOKS:
        raise UnknownName("attention variant with a look", attention, LOOKS)
    return LOOKS[attention]


def in_order(attentions: Iterable[str]) -> list[str]:
    """Return the variants in the order of figures, each once.

    Raises `UnknownName` for one that has no look.
    """
    wanted = set(attentions)
    for name in sorted(wanted):
        look_of(name)
    return [name for name in LOOKS if name in wanted]
