"""The base of the attention variants: heads, masks, projections, and the sites that a capture reads.

A variant is a free function on (batch, head, token, head_dim) tensors, followed by a subclass of
``AttentionModule`` that replaces ``timm.layers.Attention``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbench.core.errors import InputError, UnknownName
from workbench.core.operands import Arguments, Result, annotated_axes, checked_tensors

CONVENTIONS = ("as_published", "as_implemented")


class AttentionModule(nn.Module):
    """Base of every variant: ``qkv`` projects into heads, ``attend`` mixes, ``proj`` puts the heads together.

    Attribute names are timm's, so that weights can be kept. A subclass says what ``qkv`` holds
    (``projections``), implements ``attend``, and takes its own options as further keyword arguments.
    """

    # What a capture of this variant can hold: ("q", "k", "v", "attn"), ("membership",), ("e_scores", "r_scores") …
    sites: ClassVar[tuple[str, ...]] = ("q", "k", "v", "attn")
    # Over what the softmax runs: "token" (attn is token × token), "channel", or "none" (no such map).
    attends: ClassVar[str] = "token"
    # What ``qkv`` computes, in this order, ``dim`` features each; weights are kept by these names.
    projections: tuple[str, ...] = ("q", "k", "v")
    # "optional": causal=True can be asked for; "always"; "never".
    causality: ClassVar[str] = "optional"

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        proj_bias: bool = True,
        causal: bool = False,
        num_tokens: int | None = None,
        layer: int = 0,
    ) -> None:
        """Create the projections ``qkv`` and ``proj``, which every variant has.

        ``num_tokens`` is the longest sequence, for variants that learn something per position; ``layer`` the
        number of the layer from 0, for variants that differ between layers.

        Raises InputError when num_heads does not divide dim, or the variant cannot be causal.
        """
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise InputError(f"num_heads {num_heads} does not divide dim {dim}; choose a divisor of {dim}")
        if causal and self.causality == "never":
            raise InputError(
                f"{type(self).__name__} mixes all tokens and has no causal form; leave out causal=True"
            )
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = 1 / math.sqrt(self.head_dim)
        self.causal = causal or self.causality == "always"
        self.num_tokens = num_tokens
        self.layer = layer
        self.qkv = nn.Linear(dim, len(self.projections) * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim, bias=proj_bias)

    def attend(
        self,
        x: Float[Tensor, "batch token dim"],
        mask: Bool[Tensor, ...] | None = None,
        *,
        observe: bool = False,
    ) -> tuple[Float[Tensor, "batch head token head_dim"], dict[str, Any]]:
        """Return the output of every head before ``proj`` and, when observing, the tensors inside.

        ``mask`` is true where a token may be attended to, (batch, token) or (batch, head, query, key) or
        four axes that broadcast to it.

        Unless ``observe``, the dict is empty. Observed, the output is computed in the same way, and the dict
        holds: with ``attends`` "token" ``q``, ``k``, ``v``, ``scale`` and ``mask`` (None, bool, or an additive
        float) such that softmax(scale q kᵀ + mask) v is the output, or else the variant's own ``attn`` beside
        them, with attn v the output (without ``attn`` capture computes it from q and k), or else ``recompute``, a
        function of the `Call` and attn that gives the output; with
        "channel" ``q``, ``k``, ``v``, ``scale`` such that (softmax(scale qᵀ k) vᵀ)ᵀ is; with "none" nothing
        like that. Everything else in it is a site of this variant: (batch, head, …) tensors.
        """
        raise TypeError(f"{type(self).__name__} defines no attend(x, mask)")

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """(batch, token, dim) → (batch, token, dim); the arguments are those timm's blocks pass."""
        if is_causal and not self.causal:
            raise InputError(
                f"{type(self).__name__} was built without causal=True, but called with is_causal=True"
            )
        return self.finish(self.attend(x, attn_mask)[0])

    def finish(self, output: Float[Tensor, "batch head token head_dim"]) -> Float[Tensor, "batch token dim"]:
        """Merge the heads' output and project it."""
        return self.proj(merge_heads(output))

    def project(self, x: Float[Tensor, "batch token dim"]) -> tuple[Tensor, ...]:
        """Return one (batch, head, token, head_dim) tensor for each of ``projections``."""
        return tuple(
            split_heads(part, self.num_heads) for part in self.qkv(x).chunk(len(self.projections), -1)
        )

    def check_length(self, tokens: int) -> None:
        """Raise InputError for a sequence longer than what was learned per position."""
        if self.num_tokens is not None and tokens > self.num_tokens:
            raise InputError(
                f"{type(self).__name__} was built for at most num_tokens={self.num_tokens} tokens, but got "
                f"{tokens}; shorten the input or build it with num_tokens={tokens}"
            )

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_heads={self.num_heads}" + (", causal=True" if self.causal else "")


class MapAttention(AttentionModule):
    """Base of the variants whose output is attn v, with ``weights`` a map of their own that need not sum to 1."""

    def weights(
        self,
        q: Float[Tensor, "batch head token head_dim"],
        k: Float[Tensor, "batch head token head_dim"],
        mask: Bool[Tensor, ...] | None,
    ) -> Float[Tensor, "batch head query key"]:
        """Return the attention map; ``mask`` has four axes, the causal mask included."""
        raise TypeError(f"{type(self).__name__} defines no weights(q, k, mask)")

    def attend(
        self, x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v = self.project(x)
        mask = attention_mask(mask, q, causal=self.causal)
        attn = self.weights(q, k, mask)
        if not observe:
            return attn @ v, {}
        inside = {"q": q, "k": k, "v": v, "scale": self.scale, "mask": mask}
        return attn @ v, {**inside, "attn": attn, "rows_sum_to_one": False}


def required_tokens(num_tokens: int | None, what: str) -> int:
    """Return ``num_tokens``; raise InputError without it, for a variant that learns ``what`` per position."""
    if num_tokens is None or num_tokens < 1:
        raise InputError(
            f"{what} needs num_tokens, the number of tokens of the longest input; got {num_tokens}"
        )
    return num_tokens


def check_convention(convention: str) -> None:
    """Raise UnknownName unless ``convention`` is one of `CONVENTIONS`."""
    if convention not in CONVENTIONS:
        raise UnknownName("convention", convention, CONVENTIONS)


def checked_mechanism(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a mechanism check its tensors before it runs: each by itself, and against one another.

    Axes of one name have one size in all annotated parameters; batch and head may also be 1, and are then repeated.
    Raises `InputError` with the shapes. The fused kernel does not look: with fewer values than keys it reads past
    their end.
    """
    operands = annotated_axes(function)

    @functools.wraps(function)
    def refusing(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        tensors = {
            name: (axes, args[position] if position < len(args) else kwargs.get(name))
            for position, name, axes in operands
        }
        _check_together({name: pair for name, pair in tensors.items() if pair[1] is not None})
        return function(*args, **kwargs)

    return checked_tensors(refusing)


def _check_together(tensors: Mapping[str, tuple[tuple[str, list[str]], Any]]) -> None:
    sizes: dict[str, tuple[str, int]] = {}
    leading: dict[str, list[tuple[int, ...]]] = {}
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, (_, tensor) in tensors.items())
    for name, ((starred, axes), tensor) in tensors.items():
        first = tensor.ndim - len(axes)
        if starred:
            leading.setdefault(starred, []).append(tuple(tensor.shape[:first]))
        elif first:
            raise InputError(
                f"{name} has shape {tuple(tensor.shape)}; expected {len(axes)} axes ({', '.join(axes)})"
            )
        for axis, size in zip(axes, tensor.shape[first:], strict=True):
            other, other_size = ("1", 1) if axis == "1" else sizes.get(axis, (name, size))
            if size != other_size and not (axis in ("batch", "head") and 1 in (size, other_size)):
                raise InputError(
                    f"{other} and {name} must agree in axis {axis}, got {other_size} and {size} in {shapes}"
                    + (
                        "; repeat grouped k and v for each query head"
                        if axis == "head" and name == "k"
                        else ""
                    )
                )
            if axis not in sizes or other_size == 1:
                sizes[axis] = name, size
    for several in leading.values():
        try:
            torch.broadcast_shapes(*several)
        except RuntimeError:
            raise InputError(f"leading axes must agree, got {shapes}") from None


def default_scale(scale: float | Tensor | None, x: Float[Tensor, "*batch token head_dim"]) -> float | Tensor:
    """Return ``scale``, or 1/√head_dim of ``x`` where it is None."""
    return 1 / math.sqrt(x.shape[-1]) if scale is None else scale


@checked_mechanism
def split_heads(
    x: Float[Tensor, "batch token width"], heads: int
) -> Float[Tensor, "batch head token head_dim"]:
    """Return (batch, token, head · head_dim) as (batch, head, token, head_dim)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


@checked_mechanism
def merge_heads(x: Float[Tensor, "batch head token head_dim"]) -> Float[Tensor, "batch token width"]:
    """Return (batch, head, token, head_dim) as (batch, token, head · head_dim)."""
    return x.transpose(1, 2).flatten(2)


@checked_mechanism
def attention_mask(
    mask: Tensor | None, x: Float[Tensor, "batch head token head_dim"], *, causal: bool = False
) -> Bool[Tensor, ...] | None:
    """Return ``mask`` with four axes that broadcast to (batch, head, query, key), joined with the causal mask.

    Two axes always mean (batch, token). None where every token may attend to every token. ``x`` gives the
    sizes: query and key are its tokens.
    """
    batch, heads, tokens, _ = x.shape
    if mask is not None:
        if mask.dtype != torch.bool:
            raise InputError(f"the mask must be bool, true = attend, but its dtype is {mask.dtype}")
        full = (batch, heads, tokens, tokens)
        shape = tuple(mask.shape)
        mask = mask[:, None, None, :] if mask.ndim == 2 else mask
        if mask.ndim != 4 or any(have not in (1, want) for have, want in zip(mask.shape, full, strict=True)):
            raise InputError(
                f"the mask has shape {shape}; accepted are (batch, token) = {(batch, tokens)} and four axes that "
                f"broadcast to (batch, head, query, key) = {full}"
            )
    if causal:
        earlier = causal_mask(tokens, x.device)
        mask = earlier if mask is None else mask & earlier
    return mask


@checked_mechanism
def token_mask(
    mask: Bool[Tensor, ...] | None, x: Float[Tensor, "batch head token head_dim"], what: str
) -> Bool[Tensor, "batch token"] | None:
    """Return the mask as (batch, token), for a variant without pairs of tokens.

    ``what`` names the variant in the InputError for a mask that differs between queries or heads.
    """
    mask = attention_mask(mask, x)
    if mask is None:
        return None
    if mask.shape[1] != 1 or mask.shape[2] != 1:
        raise InputError(
            f"{what} has no pairs of tokens to mask: the mask must be (batch, token) or (batch, 1, 1, token), "
            f"got {tuple(mask.shape)}"
        )
    return mask[:, 0, 0].expand(x.shape[0], x.shape[2])


def causal_mask(tokens: int, device: torch.device | None = None) -> Bool[Tensor, "1 1 query key"]:
    """Return a mask that is true where the key is not later than the query."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()[None, None]


@checked_mechanism
def masked_softmax(
    scores: Float[Tensor, "*batch query key"], mask: Bool[Tensor, ...] | None
) -> Float[Tensor, "*batch query key"]:
    """Return the softmax over allowed keys; a query that may attend to none has a row of zeros.

    As ``F.scaled_dot_product_attention`` does it, its gradients included: an empty row gives none.
    """
    if mask is None:
        return scores.softmax(dim=-1)
    empty = mask.any(dim=-1, keepdim=True).logical_not()
    scores = scores.masked_fill(mask.logical_not(), -math.inf).masked_fill(empty, 0.0)
    return scores.softmax(dim=-1).masked_fill(empty, 0.0)
