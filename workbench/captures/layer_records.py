"""The containers that a capture is made of, with no tensor work beyond views.

Axes are (batch, head, token, head_dim); attention (batch, head, query, key); hidden states (batch, token,
width).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.captures.implicit_masks import causal_mask
from workbench.core.errors import InputError
from workbench.core.notebook_html import card, shape, table

SITES = (
    "input", "q", "k", "v", "scale", "mask", "attn", "head_out", "resid_pre", "attn_out", "resid_mid", "resid_post"
)  # fmt: skip
STREAM = ("resid_pre", "attn_out", "resid_mid", "resid_post")
"""Sites that are read around the attention, where its block holds the residual stream."""
DEFAULT_SITES = ("q", "k", "v", "scale", "mask", "attn", "head_out")

SITE_AXES = {
    **dict.fromkeys(("input", *STREAM), ("batch", "token", "width")),
    **dict.fromkeys(("q", "k", "v", "head_out"), ("batch", "head", "token", "head_dim")),
    **dict.fromkeys(("mask", "attn", "effective"), ("batch", "head", "query", "key")),
}


@dataclass
class WindowOrigin:
    """The origin of windows in a batch axis (Swin): row i of the batch is window (row[i], column[i]).

    ``image`` is the index of the input, ``size`` the window's (height, width) in tokens, ``shift`` the cyclic
    shift in tokens before the cut, ``grid`` the (rows, columns) of windows per input.
    """

    image: Int[Tensor, " window"]
    row: Int[Tensor, " window"]
    column: Int[Tensor, " window"]
    size: tuple[int, int]
    shift: tuple[int, int]
    grid: tuple[int, int]


@dataclass
class Call:
    """One attention call as a route or an adapter saw it, before anything is computed from it.

    q (batch, head, query, head_dim), k and v (batch, kv_head, key, head_dim); kv_head divides head.
    scale multiplies q kᵀ: a number, or a tensor that broadcasts against (head, 1, 1).
    mask: None, bool (true = attend) or an additive float, broadcastable to (batch, head, query, key).
    head_out (batch, head, query, head_dim): what the attention hands to the output projection.
    attn: the family's own weights, where they are not softmax(scale q kᵀ + mask); otherwise None.
    used_attn: softmax(scale q kᵀ + mask) as head_out was computed from it; None where a kernel formed no map.
    kind: "token", "channel" or "none" (see ``LayerRecord``); with "none" q, k, v and scale may be None.
    """

    q: Float[Tensor, "batch head query head_dim"]
    k: Float[Tensor, "batch kv_head key head_dim"]
    v: Float[Tensor, "batch kv_head key value_dim"]
    scale: float | Tensor
    mask: Tensor | None
    head_out: Float[Tensor, "batch head query value_dim"]
    attn: Tensor | None = None
    used_attn: Tensor | None = None
    kind: str = "token"
    rows_sum_to_one: bool = True
    dropout: float = 0.0
    extra: dict[str, Tensor] = field(default_factory=dict)
    origin: WindowOrigin | None = None
    # Output from attn in families where it is not attn @ v; gets the call and attn.
    recompute: Callable[[Call, Tensor], Tensor] | None = None
    # (rebuilt, module's own) pairs that an adapter wants compared as well.
    reproduced: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    causal: ClassVar[bool] = False
    """Whether the mask is causal and was not written out yet."""


@dataclass
class Generated:
    """The continuation that a model generated, a token at each of ``steps``.

    ``sequences`` (batch, token) are the prompts and the generated tokens, ``prompt_tokens`` the number that are the
    prompt's; the last one was chosen and never read. ``logits`` (batch, step, vocabulary) are those that a step's token
    was chosen from, before any temperature or penalty; None where they were not asked for. ``real`` (batch, step) is
    false for what fills up an input that ended before others. ``batch`` is what `capture` takes to see the same text
    in one pass.
    """

    sequences: Int[Tensor, "batch token"]
    prompt_tokens: int
    real: Bool[Tensor, "batch step"]
    logits: Float[Tensor, "batch step vocabulary"] | None = None
    batch: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def steps(self) -> int:
        """How many tokens were generated."""
        return self.sequences.shape[1] - self.prompt_tokens


@dataclass
class LayerRecord:
    """One attention call of a forward pass: layer ``index`` in call order, and its sites (None: not asked for).

    ``path`` names the module, ``call`` counts its calls from 0. ``kind`` is "token" (softmax over tokens),
    "channel" (softmax over channels, attn is (batch, head, head_dim, head_dim)) or "none" (no map of tokens
    or channels, so no attn; what there is stands in ``extra``: memberships, scores). ``rows_sum_to_one`` says
    whether the family declares rows of ``attn`` to sum to 1. A query that may attend to no key has a row of
    zeros. ``source`` is "self", or "cross" where keys and values come of other tokens than the queries (a decoder's
    attention to the encoder, patches that attend to a prompt); ``counts`` are how many queries and keys there are.
    ``mixer`` names what is no attention at all, "Mamba2Mixer (state-space mixer)": such a layer holds what goes into it
    and the residual stream around it, where asked for.
    """

    index: int
    path: str
    call: int = 0
    kind: str = "token"
    rows_sum_to_one: bool = True
    source: str = "self"
    counts: tuple[int, int] | None = None
    input: Float[Tensor, ...] | None = None
    q: Float[Tensor, "batch head token head_dim"] | None = None
    k: Float[Tensor, "batch kv_head token head_dim"] | None = None
    v: Float[Tensor, "batch kv_head token head_dim"] | None = None
    scale: float | Tensor | None = None
    mask: Tensor | None = None
    attn: Float[Tensor, "batch head query key"] | None = None
    head_out: Float[Tensor, "batch head token head_dim"] | None = None
    resid_pre: Float[Tensor, ...] | None = None
    attn_out: Float[Tensor, ...] | None = None
    resid_mid: Float[Tensor, ...] | None = None
    resid_post: Float[Tensor, ...] | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)
    origin: WindowOrigin | None = None
    mixer: str = ""

    causal: ClassVar[bool] = False
    """Whether keys no later than the query are seen and no others, without a mask that was written out."""

    def __getattr__(self, name: str) -> Tensor:
        """A family's own sites are attributes as well: ``record.membership``."""
        extra = self.__dict__.get("extra", {})
        if name in extra:
            return extra[name]
        further = f"; beside the usual sites it has {', '.join(extra)}" if extra else ""
        raise AttributeError(f"{type(self).__name__} has no {name!r}{further}")

    def grouped(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v as views (batch, kv_head, group, token, head_dim): every head beside the keys it reads.

        k and v are expanded along ``group`` without a copy; group is 1 without grouped queries.
        """
        if self.q is None or self.k is None or self.v is None:
            raise InputError(
                f"layer {self.index}: grouped() needs the sites q, k and v; capture them together"
            )
        kv_heads = self.k.shape[1]
        q = self.q.unflatten(1, (kv_heads, self.q.shape[1] // kv_heads))
        group = q.shape[2]
        k = self.k.unsqueeze(2).expand(-1, -1, group, -1, -1)
        v = self.v.unsqueeze(2).expand(-1, -1, group, -1, -1)
        return q, k, v

    @property
    def captured(self) -> dict[str, Tensor | float]:
        """The sites that this record holds, those of the family's own last."""
        return {site: value for site in SITES if (value := getattr(self, site)) is not None} | self.extra

    @property
    def title(self) -> str:
        """Return number and module, with a later call, cross attention, and another kind where they apply."""
        call = f" call {self.call}" if self.call else ""
        kind = "" if self.kind == "token" else f" {self.kind}"
        source = "" if self.source == "self" else f" {self.source}"
        mixer = f" {self.mixer}" if self.mixer else ""
        return f"layer {self.index}{kind}{source} {self.path}{call}{mixer}"

    def __repr__(self) -> str:
        shapes = [
            f"{site}{list(value.shape)}" if isinstance(value, Tensor) else f"{site}={value:.4g}"
            for site, value in self.captured.items()
        ]
        return f"<{self.title}: {' '.join(shapes)}>" if shapes else f"<{self.title}>"

    def _repr_html_(self) -> str:
        return card(self.title, {}, self.sites_table())

    def sites_table(self) -> str:
        """Site, axes, shape and type of each tensor, as HTML."""
        rows = [
            (
                site,
                ", ".join(SITE_AXES.get(site, ())),
                shape(value),
                str(getattr(value, "dtype", "number")).removeprefix("torch."),
            )
            for site, value in self.captured.items()
        ]
        return table(("site", "axes", "shape", "type"), rows)


class _CausalMask(ABC):
    """A causal mask that is written out only when it is read, since long inputs can do without."""

    _mask: Tensor | None = None

    @property
    def causal(self) -> bool:
        return self._mask is None

    @property
    def mask(self) -> Tensor | None:
        if self._mask is None:
            self._mask = self._written_out()
        return self._mask

    @mask.setter
    def mask(self, mask: Tensor | None) -> None:
        self._mask = mask

    @abstractmethod
    def _written_out(self) -> Tensor | None:
        """Write the mask out."""


class CausalCall(_CausalMask, Call):  # ty: ignore[incompatible-property-override] - only ever read
    """A call whose mask is that of `causal_mask`."""

    def _written_out(self) -> Tensor:
        return causal_mask(self.q.shape[2], self.k.shape[2], self.q.device)


class CausalRecord(_CausalMask, LayerRecord):  # ty: ignore[incompatible-property-override] - only ever read
    """A layer with too many queries and keys for a map, whose mask is causal."""

    def _written_out(self) -> Tensor | None:
        device = torch.device("cpu") if self.q is None else self.q.device
        return None if self.counts is None else causal_mask(*self.counts, device)
