"""What the weights of a head do: the circuits W_Q W_Kᵀ and W_V W_O, and how heads compose (Elhage et al. 2021).

W_QK says which tokens attend to which, W_OV what a head writes of a token that it attends to. Both have the rank of a
head at most, and every quantity comes from their thin factors; no matrix of width × width is formed. The gain of the
norm before attention is part of W_Q, W_K and W_V. Weights act on rows: x W.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.analyses.gram_spectrum import EFFECTIVE_RANK, effective_rank
from workbench.analyses.layer import Layer, NotApplicable
from workbench.analyses.registry import Analysis, OfMatrices
from workbench.captures import first_norm, head_projection, output_weight
from workbench.captures.position_path import positions_instead
from workbench.core.null_distributions import generator
from workbench.core.operands import checked_tensors
from workbench.core.options import NullSamples
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric

QK, OV = "QK", "OV"
KINDS = ("Q", "K", "V")
_GAINS = ("LayerNorm", "RMSNorm", "RmsNorm")
_QK_NORMS = ("q_norm", "k_norm", "norm_q", "norm_k", "query_norm", "key_norm", "q_layernorm", "k_layernorm")


@dataclass(frozen=True)
class Options(OfMatrices):
    """Options of `qk-ov-circuits`."""

    null_samples: Annotated[
        NullSamples, "samples of the null distribution, Gaussian matrices, at least 2; 0 leaves it out"
    ] = 20


SINGULAR_VALUE = Metric(
    "circuit_singular_value",
    "Singular value of a circuit",
    "σ over the root of the sum of all σ² of W_Q W_Kᵀ (candidate QK) or W_V W_O (candidate OV); null: Gaussian factors",
    "Elhage et al. 2021",
    low=0,
    high=1,
)
_COPYING = Metric(
    "circuit_copying",
    "Copying score",
    "Σ λ / Σ |λ| over eigenvalues λ of W_V W_O: 1 if all are positive, −1 if all are negative; null: Gaussian factors",
    "Elhage et al. 2021",
    low=-1,
    high=1,
)
_COMPOSITION = Metric(
    "circuit_composition",
    "Composition with an earlier head",
    "‖W_OV W‖ / (‖W_OV‖ ‖W‖) in Frobenius norm, with W_OV of the earlier head named by axis and W of this head: "
    "W_Q W_Kᵀ (candidate Q), W_K W_Qᵀ (candidate K), W_V W_O (candidate V); null: Gaussian factors",
    "Elhage et al. 2021",
    low=0,
    high=1,
)


@checked_tensors
def circuit_singular_values(
    left: Float[Tensor, "*batch width rank"], right: Float[Tensor, "*batch width rank"]
) -> Float[Tensor, "*batch rank"]:
    """Return the largest singular values of left rightᵀ, from its factors, in float64 (Elhage et al. 2021)."""
    return torch.linalg.svdvals(_triangle(left) @ _triangle(right).mT)


@checked_tensors
def copying_score(
    value: Float[Tensor, "*batch width rank"], output: Float[Tensor, "*batch rank width"]
) -> Float[Tensor, "*batch"]:
    """Return Σ λ / Σ |λ| over the eigenvalues of W_V W_O, which are those of W_O W_V (Elhage et al. 2021)."""
    eigenvalues = torch.linalg.eigvals(output.double() @ value.double())
    return eigenvalues.real.sum(-1) / eigenvalues.abs().sum(-1)


@checked_tensors
def composition_scores(
    value: Float[Tensor, "earlier width value_dim"],
    output: Float[Tensor, "earlier value_dim width"],
    left: Float[Tensor, "head width rank"],
    right: Float[Tensor, "head width rank"],
) -> Float[Tensor, "earlier head"]:
    """Return ‖W_V W_O left rightᵀ‖ / (‖W_V W_O‖ ‖left rightᵀ‖) of earlier heads and heads (Elhage et al. 2021)."""
    value, output, left, right = (part.double() for part in (value, output, left, right))
    earlier, dim, _ = output.shape
    heads, _, rank = left.shape
    middle = output.flatten(0, 1) @ left.transpose(0, 1).flatten(1)
    middle = middle.unflatten(0, (earlier, dim)).unflatten(-1, (heads, rank)).transpose(1, 2)
    rows, columns = _triangle(value), _triangle(right)
    joint = (rows[:, None] @ middle @ columns.mT).flatten(-2).norm(dim=-1)
    written = (rows @ _triangle(output.mT).mT).flatten(-2).norm(dim=-1)
    read = (_triangle(left) @ columns.mT).flatten(-2).norm(dim=-1)
    return joint / (written[:, None] * read)


def _triangle(factor: Float[Tensor, "*batch width rank"]) -> Float[Tensor, "*batch rank rank"]:
    """Return R of the QR decomposition, which has the norm and the singular values of the factor."""
    return torch.linalg.qr(factor.double(), mode="r").R


class Circuits(NamedTuple):
    """The factors of the circuits of every query head, (head, width, head_dim), in float64; ``o`` is W_Oᵀ.

    ``between`` names what lies between the projections and the logits, so that W_QK is not all of them; else "".
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    between: str

    def factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the two factors of each circuit that the weights give."""
        return ({} if self.between else {QK: (self.q, self.k)}) | {OV: (self.v, self.o)}


def _circuits_of(model: nn.Module, path: str) -> Circuits:
    """Return the factors of the circuits of the attention at ``path`` (Elhage et al. 2021).

    Raises `NotApplicable` for attention between channels, and attention without projections to q, k and v.
    """
    module = model.get_submodule(path)
    attends, projections = (
        getattr(module, "attends", "token"),
        getattr(module, "projections", ("q", "k", "v")),
    )
    if type(module).__name__ == "XCA" or attends != "token" or len(projections) < 3:
        raise NotApplicable("has no projections to q, k and v of attention between tokens")
    weights = [head_projection(module, name, path).weight.double() for name in "qkv"]
    heads = len(weights[0])
    gain = _gain(first_norm(model, path))
    if gain is not None and all(weight.shape[1] == len(gain) for weight in weights):
        weights = [gain[:, None] * weight for weight in weights]
    q, k, v = (weight.repeat_interleave(heads // len(weight), 0) for weight in weights)
    o = output_weight(model, path, heads * v.shape[-1]).double().unflatten(0, (heads, -1)).mT
    return Circuits(q, k, v, o, _between(model, module))


def _between(model: nn.Module, module: nn.Module) -> str:
    """Return what changes queries and keys after their projections, or ""."""
    if "rotary" in (positions_instead(model) or ""):
        return "rotary positions"
    norms = (getattr(module, name, None) for name in _QK_NORMS)
    return "norms" if any(norm is not None and not isinstance(norm, nn.Identity) for norm in norms) else ""


def _gain(norm: nn.Module | None) -> Float[Tensor, " width"] | None:
    """Return the gain of a LayerNorm or RMSNorm up to a factor; None where there is no such norm.

    It is read off the outputs of x and −x of mean zero, whatever the norm adds to its weight.
    """
    weight = getattr(norm, "weight", None)
    if norm is None or not isinstance(weight, Tensor) or not type(norm).__name__.endswith(_GAINS):
        return None
    x = torch.ones_like(weight)
    x[1::2] = -1
    if len(x) % 2:
        x[-3:] = x.new_tensor([1, 1, -2])
    with torch.no_grad():
        return ((norm(x) - norm(-x)) / (2 * x)).double()


def _drawn(
    layer: Layer, options: Options, shape: Sequence[int]
) -> Float[Tensor, "factor sample width head_dim"]:
    """Return Gaussian factors of two circuits, the same for all heads of a layer."""
    source = generator(layer.seed, layer.index, *shape)
    return torch.randn(4, options.null_samples, *shape, generator=source, dtype=torch.float64)


def _relative(values: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch rank"]:
    return values / values.norm(dim=-1, keepdim=True)


def _measurement(metric: Metric, values: Tensor, drawn: Tensor, **columns: str) -> Measurement:
    """Return a measurement of heads whose null samples, (sample, …), are those of every head."""
    samples = {"gaussian": drawn.movedim(0, -1).expand(*values.shape, -1)} if len(drawn) else {}
    axes = ("head", "rank")[: values.ndim]
    return Measurement(metric, values, axes, columns=columns, null_samples=samples)


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Measure the spectra of the circuits of a layer, and their composition with every earlier head."""
    model = layer.need_model()
    circuits = _circuits_of(model, layer.record.path)
    layer.choose_heads(circuits.v[None])
    layer.counts.add(
        f"heads have {circuits.between} after their projections to q and k: no QK, and no Q- and K-composition",
        torch.full((len(layer.heads),), bool(circuits.between)),
    )
    factors = {
        name: (left[layer.heads], right[layer.heads]) for name, (left, right) in circuits.factors().items()
    }
    for name, (left, right) in factors.items():
        random, other, *_ = _drawn(layer, options, left.shape[1:])
        values, drawn = circuit_singular_values(left, right), circuit_singular_values(random, other)
        yield _measurement(SINGULAR_VALUE, _relative(values), _relative(drawn), candidate=name)
        yield _measurement(EFFECTIVE_RANK, effective_rank(values), effective_rank(drawn), candidate=name)
        if name == OV:
            yield _measurement(
                _COPYING, copying_score(left, right.mT), copying_score(random, other.mT), candidate=name
            )

    reads = {"V": factors[OV]}
    if QK in factors:
        reads |= {"Q": factors[QK], "K": factors[QK][::-1]}
    earlier = [record for record in layer.before if not record.mixer]
    for kind, (left, right) in reads.items():
        drawn = (
            torch.stack(
                [
                    composition_scores(v[None], o.mT[None], read[None], other[None])[0, 0]
                    for v, o, read, other in _drawn(layer, options, left.shape[1:]).unbind(1)
                ]
            )
            if options.null_samples
            else torch.empty(0)
        )
        for record in earlier:
            try:
                written = _circuits_of(model, record.path)
            except NotApplicable:
                continue
            if written.o.shape[1] != left.shape[1]:  # another width, as after merged patches
                continue
            scores = composition_scores(written.v, written.o.mT, left, right)
            for head, row in enumerate(scores):
                of = f"layer {record.index} head {head}"
                yield _measurement(_COMPOSITION, row, drawn, candidate=kind, axis=of)


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """Report effective ranks, heads that copy, and the strongest composition of each kind."""
    sentences = []
    for name in (QK, OV):
        rows = _rows(frame, EFFECTIVE_RANK, name)
        if len(rows):
            null = (
                ""
                if rows["null_mean"].isna().all()
                else f" ({rows['null_mean'].mean():.1f} of Gaussian factors)"
            )
            sentences.append(
                f"effective rank of W_{name} {rows['value'].mean():.1f}, mean over {len(rows)} heads{null}"
            )
    copying = _rows(frame, _COPYING, OV)
    if len(copying):
        sentence = (
            f"W_OV has {(copying['value'] > 0).sum()} of {len(copying)} heads with a positive copying score"
        )
        if copying["null_high"].notna().any():
            above = (copying["value"] > copying["null_high"]).sum()
            below = (copying["value"] < copying["null_low"]).sum()
            sentence += f"; {above} are above and {below} below the range of Gaussian factors"
        sentences.append(sentence)
    for kind in KINDS:
        rows = _rows(frame, _COMPOSITION, kind)
        if len(rows):
            row = rows.loc[rows["value"].idxmax()]
            null = "" if pd.isna(row["null_mean"]) else f" ({row['null_mean']:.3f} of Gaussian factors)"
            sentences.append(
                f"strongest {kind}-composition: head {row['head']} of layer {row['layer']} with {row['axis']}, "
                f"{row['value']:.3f}{null}"
            )
    return sentences


def _rows(frame: pd.DataFrame, metric: Metric, candidate: str) -> pd.DataFrame:
    return frame[(frame["metric"] == metric.name) & (frame["candidate"] == candidate)]


ANALYSIS = Analysis(
    "qk-ov-circuits",
    "What the weights of heads do: spectra of W_QK and W_OV, copying, and composition between heads",
    (),
    measure,
    (SINGULAR_VALUE, EFFECTIVE_RANK, _COPYING, _COMPOSITION),
    Options,
    together=lambda options: True,  # with all layers before it
    findings=findings,
)
