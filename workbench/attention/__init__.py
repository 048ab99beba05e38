"""The papers' attention mechanisms: one paper, one file: free functions first, then the module.

``VARIANTS`` is the one table of them; ``attention_module`` builds any by name, ``replace_attention`` puts it
into a timm vision transformer. A new variant is a file, and an entry here.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import lazy_loader
from annotated_types import Ge, Gt

from workbench.core.errors import InputError, UnknownName
from workbench.core.options import Accepted, Unbounded, accept
from workbench.core.plugins import Registry, instance_of

if TYPE_CHECKING:
    from workbench.attention.base import AttentionModule
    from workbench.attention.replacing import Replacement, replace_attention

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "base": ["AttentionModule", "merge_heads", "split_heads"],
        "replacing": ["Replacement", "replace_attention"],
    },
)

__all__ = [
    "VARIANTS",
    "attention_module",
    "replace_attention",
    "Replacement",
    "Variant",
    "Option",
    "AttentionModule",
    "split_heads",
    "merge_heads",
]


@dataclass(frozen=True)
class Option:
    """An option of a variant: its default, its meaning, and the annotated type of its values."""

    default: Any
    help: str
    kind: Any = Any


@dataclass(frozen=True)
class Variant:
    """One row of the table.

    ``where`` is "file:Class", or "package.module:Class" of another package; ``fixed`` are options that make the name
    what it is. ``papers`` are keys of the bibliography. ``options`` belong to this variant; beside them every variant
    takes qkv_bias, proj_bias, causal, num_tokens and layer (see ``AttentionModule``).
    """

    title: str
    where: str
    papers: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Option] = field(default_factory=dict)

    @property
    def module(self) -> type[AttentionModule]:
        """Return the class, which is imported at the first request."""
        file, _, name = self.where.partition(":")
        return getattr(importlib.import_module(file if "." in file else f"{__name__}.{file}"), name)

    @property
    def sites(self) -> tuple[str, ...]:
        """Return the sites that a capture can hold."""
        return self.module.sites

    @property
    def attends(self) -> str:
        """Return the axis of its softmax: "token", "channel" or "none"."""
        return self.module.attends

    @property
    def causality(self) -> str:
        """Return whether it can be causal: "optional", "always" or "never"."""
        return "always" if self.fixed.get("causal") else self.module.causality


# What every variant takes (``AttentionModule``).
SHARED_OPTIONS = {
    "qkv_bias": bool, "proj_bias": bool, "causal": bool, "num_tokens": int | None, "layer": Annotated[int, Ge(0)],
}  # fmt: skip

_Positive = Annotated[float, Gt(0), Accepted("a number above 0")]
_Unbounded = Annotated[float, Gt(0), Unbounded, Accepted("a number above 0, or infinity")]
_Weight = Annotated[float, Ge(0), Unbounded, Accepted("a number from 0 up, or infinity")]
_Count = Annotated[int, Ge(0)]
_Size = Annotated[int, Ge(1)]
_RPC = {
    "lambd": Option(4.0, "weight λ of the sparse part; ∞ leaves nothing sparse", _Weight),
    "convention": Option(
        "as_published",
        "threshold and step: as_published λ/μ, per head; as_implemented λμ, over the full width",
    ),
}
_ITERATIONS = (
    "steps of the pursuit; a list gives one number per layer, 0 and beyond its end none",
    Annotated[
        _Count | list[_Count] | tuple[_Count, ...], Accepted("a whole number from 0 up, or a list of them")
    ],
)
_CONTENT = {
    "h_y": Option(
        None, "bandwidth of the content at the start; none: head_dim^¼, the usual scale", _Positive | None
    ),
    "learn_bandwidths": Option(True, "learn the bandwidths, one of each per layer", bool),
}

_TSSA = {
    "convention": Option(
        "as_published",
        "membership: as_published eq. 10; as_implemented (and trained) from features of unit norm over tokens",
    )
}
_PRIMAL_INDEPENDENT = {
    "low_rank": Option(96, "directions s kept of the kernel", _Size),
    "scores": Option("both", "parts of the output: both e and r, or only e (chen2023 Table 8)"),
    "convention": Option(
        "as_published",
        "of the KSVD objective: as_published per input and head; as_implemented of means, Λ squared",
    ),
}
_PRIMAL = _PRIMAL_INDEPENDENT | {
    "rank_multi": Option(
        10, "data-dependent weights read this many times s tokens, or all where fewer", _Size
    ),
}

_OWN: dict[str, Variant] = {
    "softmax": Variant("softmax attention", "softmax:SoftmaxAttention"),
    "softmax-sym": Variant("symmetric softmax attention", "softmax:SymmetricAttention", ("teo2024",)),
    "rpc-sym": Variant(
        "RPC-Attention, symmetric",
        "rpc:RPCAttention",
        ("teo2024",),
        {"symmetry": "sym"},
        {"num_iter": Option(4, *_ITERATIONS), **_RPC},
    ),
    "rpc-asym": Variant(
        "RPC-Attention, asymmetric",
        "rpc:RPCAttention",
        ("teo2024",),
        {"symmetry": "asym"},
        {"num_iter": Option(4, *_ITERATIONS), **_RPC},
    ),
    "rpc-sym-asym": Variant(
        "RPC-Attention, symmetric in its robust layers",
        "rpc:RPCAttention",
        ("teo2024",),
        {"symmetry": "sym-asym"},
        {"num_iter": Option((4,), *_ITERATIONS), **_RPC},
    ),
    "scaled-free": Variant("Scaled Attention, free S", "scaled:ScaledFree", ("teo2024",)),
    "scaled-alpha": Variant("Scaled Attention, S = α A", "scaled:ScaledAlpha", ("teo2024",)),
    "scaled-exact": Variant("Scaled Attention, exact S", "scaled:ScaledExact", ("teo2024",)),
    "tssa": Variant(
        "Token Statistics Self-Attention", "tssa:TokenStatisticsAttention", ("wu2025",), options=_TSSA
    ),
    "tssa-causal": Variant(
        "Token Statistics Self-Attention, causal",
        "tssa:TokenStatisticsAttention",
        ("wu2025",),
        {"causal": True},
        _TSSA,
    ),
    "mssa": Variant("multi-head subspace self-attention of CRATE", "mssa:SubspaceAttention", ("wu2025",)),
    "xca": Variant("cross-covariance attention of XCiT", "xca:CrossCovarianceAttention", ("wu2025",)),
    "primal": Variant(
        "Primal-Attention", "primal:PrimalAttention", ("chen2023",), {"independent": False}, _PRIMAL
    ),
    "primal-independent": Variant(
        "Primal-Attention, data-independent weights",
        "primal:PrimalAttention",
        ("chen2023",),
        {"independent": True, "rank_multi": 10},
        _PRIMAL_INDEPENDENT,
    ),
    "primal-causal": Variant(
        "Primal-Attention, causal",
        "primal:PrimalAttention",
        ("chen2023",),
        {"causal": True, "independent": True, "rank_multi": 10},
        _PRIMAL_INDEPENDENT,
    ),
    "bilateral": Variant(
        "bilateral self-attention",
        "bilateral:BilateralAttention",
        ("abdullaev2025",),
        {},
        {
            "h_p": Option(
                None, "bandwidth of the positions at the start; none: head_dim^¼", _Unbounded | None
            ),
            **_CONTENT,
        },
    ),
    "nonlocal": Variant(
        "non-local self-attention, without positions",
        "bilateral:BilateralAttention",
        ("abdullaev2025",),
        {"h_p": math.inf},
        _CONTENT,
    ),
    "alibi": Variant("attention with linear biases (ALiBi)", "bilateral:AlibiAttention", ("abdullaev2025",)),
    "twicing": Variant("twicing attention, (2A − A²)V", "bilateral:TwicingAttention", ("abdullaev2025",)),
    "softmax-qk-norm": Variant(
        "softmax attention of normalised queries and keys", "softmax:NormalizedAttention"
    ),
    "softmax-off-by-one": Variant(
        "softmax off by one: a key more, of logit 0 and value 0",
        "sink_logits:SinkAttention",
        fixed={"learn_sink": False},
    ),
    "softmax-learned-sink": Variant(
        "softmax with a learned sink per head", "sink_logits:SinkAttention", fixed={"learn_sink": True}
    ),
    "softpick": Variant("softpick: a rectified softmax", "softpick:SoftpickAttention"),
    "sigmoid": Variant("sigmoid attention", "sigmoid:SigmoidAttention"),
    "gated": Variant("softmax attention with a gate on the heads' output", "gated:GatedAttention"),
    "differential": Variant(
        "differential attention: one map minus another", "differential:DifferentialAttention"
    ),
    "forgetting": Variant("forgetting attention, causal", "forgetting:ForgettingAttention"),
    "linformer": Variant(
        "Linformer: attention to a few mixtures of tokens",
        "linformer:LinformerAttention",
        ("abdullaev2025", "chen2023"),
        options={"projected": Option(64, "mixtures of tokens that keys and values become", _Size)},
    ),
    "nystrom": Variant(
        "Nyström approximation of softmax attention",
        "nystrom:NystromAttention",
        ("abdullaev2025", "chen2023"),
        options={
            "landmarks": Option(64, "segments of the sequence whose means stand for their tokens", _Size),
            "iterations": Option(6, "steps towards the pseudo-inverse", _Count),
        },
    ),
}


def _check(name: str, value: Any) -> Variant:
    """A variant of another package, with a class that can stand in for ours."""
    from workbench.attention.base import AttentionModule

    variant = instance_of(Variant)(name, value)
    if not issubclass(variant.module, AttentionModule):
        raise InputError(
            f"its class {variant.where} must be derived from workbench.attention.AttentionModule"
        )
    return variant


VARIANTS: Registry[Variant] = Registry(_OWN, "workbench.variants", _check)


def attention_module(name: str, dim: int, num_heads: int, **options: Any) -> AttentionModule:
    """The attention variant ``name`` with fresh random weights, ``dim`` wide, in ``num_heads`` heads.

    Raises UnknownName for a name or an option that does not exist, InputError for values that do not fit
    together.
    """
    variant = find_variant(name)
    accepted = {*variant.options, *SHARED_OPTIONS} - set(variant.fixed)
    for option, value in options.items():
        if option not in accepted:
            raise UnknownName(f"option of attention {name!r}", option, accepted)
        kind = variant.options[option].kind if option in variant.options else SHARED_OPTIONS[option]
        try:
            accept(kind, value)
        except ValueError as error:
            raise InputError(f"attention {name!r}: {option} must be {error}; got {value!r}") from None
    defaults = {key: option.default for key, option in variant.options.items()}
    return variant.module(dim, num_heads, **(defaults | options | dict(variant.fixed)))


def find_variant(name: str) -> Variant:
    """The row of the table; UnknownName otherwise."""
    if name not in VARIANTS:
        raise UnknownName("attention variant", name, VARIANTS)
    return VARIANTS[name]
