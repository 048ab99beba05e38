"""How far a change of the logits moves softmax (abdullaev2025 §III-C): its Lipschitz constant, locally and sampled.

Logits are (*batch, key), −∞ for a key that a query does not see. The constant of softmax in the Euclidean norm is 1/2
for every N ≥ 2: the largest eigenvalue that diag(p) − ppᵀ can have (the paper cites 1). Everything in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import pandas as pd
import torch
from annotated_types import Ge, Le
from jaxtyping import Float, Int
from torch import Tensor

from workbench.analyses.attention_matrix import (
    AttentionMatrix,
    Group,
    MetricValues,
    groups_of,
    softmax_matrix,
    together,
    with_null,
)
from workbench.analyses.layer import Layer, NotApplicable
from workbench.analyses.registry import Analysis, OfHeads, Single
from workbench.core import null_distributions
from workbench.core.errors import InputError
from workbench.core.intervals import half_width, mean_interval
from workbench.core.operands import TOKENS, check_axes, check_finite, checked_tensors
from workbench.core.options import NullSamples
from workbench.frames.estimate import compare_with_null, over_inputs
from workbench.frames.measurement import Measurement
from workbench.frames.metric import Metric
from workbench.frames.results import shared

CONSTANT = 0.5
SAMPLING = "softmax-sampling"
"""Name of samples from random logits, without a model, in provenance and ``claims.csv``."""
_STEPS = 48  # of Newton, at most; logits N(0, 10²) of 10 000 keys need a dozen
_IN_CACHE = 2**16  # numbers of which a step makes copies
_AT_ONCE = 2**20  # numbers drawn


@dataclass(frozen=True)
class Options(OfHeads):
    """How strong the noise is."""

    sigma: Annotated[float, Ge(0), Le(1e6), "standard deviation of the noise that is added to the logits"] = (
        1.0
    )
    null_samples: Annotated[
        NullSamples,
        "samples of the null distribution, random q and k of the same size, at least 2; 0 leaves it out",
    ] = 20
    single: Single = False


_SOFTMAX_LIPSCHITZ = Metric(
    "softmax_lipschitz",
    "Local Lipschitz constant of softmax",
    "largest eigenvalue of diag(p) − ppᵀ at the logits of a query, mean or maximum over the queries that "
    "see at least two keys; 1/2 is the constant of softmax itself, 1/N that at equal logits",
    "abdullaev2025 Fig. 1, Remark III.5",
    low=0,
    high=0.5,
)
_SOFTMAX_PERTURBATION = Metric(
    "softmax_perturbation",
    "Softmax perturbation (L2)",
    "‖softmax(c + η) − softmax(c)‖ with c the logits of a query and η ~ N(0, sigma²), mean over queries",
    "abdullaev2025 Fig. 1, Theorem III.2",
    low=0,
    high=2**0.5,
)
_OUTPUT_PERTURBATION = Metric(
    "output_perturbation",
    "Perturbation of the head output (L2)",
    "‖softmax(c + η)V − softmax(c)V‖ with c the logits of a query, η ~ N(0, sigma²) and V the head's values, mean over "
    "queries",
    "abdullaev2025 Cor. III.2",
    low=0,
)
_OUTPUT_PERTURBATION_BOUND = Metric(
    "output_perturbation_bound",
    "Bound of the output's perturbation",
    "σ L √N ‖V‖ with ‖V‖ the largest singular value of V, N the keys that a query sees and L = 1/2 the constant of "
    "softmax, mean over queries",
    "abdullaev2025 Cor. III.2",
    low=0,
)
_VALUE_NORM_RATIO = Metric(
    "value_norm_ratio",
    "Spectral norm of V over its Frobenius norm",
    "largest singular value of V divided by the root of the sum of its squared entries; 1 where the printed "
    "‖V‖ ≍ √(dN) is exact for entries of size 1, about (√N + √d)/√(dN) for Gaussian entries",
    "abdullaev2025 Cor. III.2",
    low=0,
    high=1,
)
_LOGIT_SPREAD = Metric(
    "logit_spread",
    "Standard deviation of the logits",
    "standard deviation over the keys that a query sees of its logits, mean over queries",
    low=0,
)


@checked_tensors
def local_lipschitz(logits: Float[Tensor, "*batch key"]) -> Float[Tensor, "*batch"]:
    """Largest eigenvalue of diag(p) − ppᵀ, p = softmax(logits): the Lipschitz constant of softmax close to there.

    abdullaev2025 Remark III.5 and Fig. 1 (left) speak of its largest value, which is 1/2.

    Exact, without any N × N matrix: the root of Σ_i p_i / (p_i − λ) between the two largest p.
    Between 0 (one key takes everything) and 1/2 (two keys share everything, whatever N is); 1/N where all are equal.
    Raises `InputError` for fewer than two keys, NaN, and logits of +∞.
    """
    _check(logits)
    rows = logits.double().reshape(-1, logits.shape[-1])
    at_once = max(1, _IN_CACHE // rows.shape[-1])
    return torch.cat([_largest_eigenvalue(part) for part in rows.split(at_once)]).reshape(logits.shape[:-1])


def _largest_eigenvalue(logits: Float[Tensor, "row key"]) -> Float[Tensor, " row"]:
    """λ = m p₂ with 1 / Σ 1 / (m p₂/p_i − 1) over all keys but the first = 1 − m p₂/p₁, by Newton's steps.

    The left side is concave and rises with m, since it is a parallel sum of straight lines; so steps from the left
    never pass the root, whatever the p are.
    """
    log_p = logits.log_softmax(-1)
    largest, places = log_p.topk(2, -1)
    first, second = largest.unbind(-1)
    some = second.clamp_min(torch.finfo(torch.float64).min)  # −∞ where a query sees one key
    # in units of the second largest p, so that nothing underflows
    inverse = (some[:, None] - log_p).exp().scatter_(-1, places[:, :1], torch.inf)
    ratio = (some - first).exp()
    root = 2 / (1 + ratio)  # that of two keys
    work = torch.empty_like(inverse)
    for _ in range(_STEPS):
        torch.mul(root[:, None], inverse, out=work).sub_(1).reciprocal_()
        part = 1 / work.sum(-1)
        slope = (
            torch.linalg.vecdot(work, work) * part**2 + part + root * ratio
        )  # times the root, and at least 1
        step = (1 - part - root * ratio) / slope
        step = step.where(
            step.isfinite() & (step > 0), 0.0
        )  # two equal keys, or one alone, are there already
        root = root * (1 + step)
        if not (step > torch.finfo(torch.float64).eps).any():
            break
    return (second + root.log()).exp().clamp(max=CONSTANT)  # above only by rounding


@checked_tensors
def slope(x: Float[Tensor, "*batch key"], y: Float[Tensor, "*batch key"]) -> Float[Tensor, "*batch"]:
    """‖softmax x − softmax y‖ / ‖x − y‖ of pairs (abdullaev2025 eq. 24); NaN where x = y."""
    return _moved(x, y) / torch.linalg.vector_norm(x - y, dim=-1)


@checked_tensors
def perturbation(
    logits: Float[Tensor, "*batch key"], noise: Float[Tensor, "*batch key"]
) -> Float[Tensor, "*batch"]:
    """‖softmax(c + η) − softmax(c)‖ (abdullaev2025 Theorem III.2): between 0 and √2, and at most ‖η‖/2."""
    _check(logits)
    return _moved(logits + noise, logits)


@checked_tensors
def output_perturbation(
    logits: Float[Tensor, "*batch query key"],
    noise: Float[Tensor, "*batch query key"],
    v: Float[Tensor, "*#batch key value_dim"],
) -> Float[Tensor, "*batch query"]:
    """‖softmax(c + η)V − softmax(c)V‖ of every query (abdullaev2025 Cor. III.2); at most `perturbation` times ‖V‖."""
    _check(logits)
    return torch.linalg.vector_norm(_change(logits + noise, logits) @ v.double(), dim=-1)


@checked_tensors
def output_bound(
    v: Float[Tensor, "*batch key value_dim"], keys: Int[Tensor, "*batch query"], sigma: float
) -> Float[Tensor, "*batch query"]:
    """σ L √N ‖V‖ (abdullaev2025 Cor. III.2), below which `output_perturbation` stays on average.

    N are the ``keys`` that a query sees, L = 1/2. The derivation allows a change of softmax as large as L ‖η‖, but no
    two distributions are farther apart than √2: so √2 ‖V‖ is the smaller bound for more than 8/σ² keys.
    """
    return sigma * CONSTANT * keys.double().sqrt() * torch.linalg.matrix_norm(v.double(), ord=2)[..., None]


def _moved(x: Tensor, y: Tensor) -> Tensor:
    return torch.linalg.vector_norm(_change(x, y), dim=-1)


def _change(x: Tensor, y: Tensor) -> Tensor:
    return x.double().softmax(-1) - y.double().softmax(-1)


def _check(logits: Tensor) -> None:
    check_axes("logits", logits, ("key",))
    if logits.shape[-1] < 2:
        raise InputError("softmax of one key is 1 whatever its logit; at least 2 keys are needed (axis key)")
    if (bad := logits.isnan() | (logits == math.inf)).any():
        raise InputError(
            f"{int(bad.sum())} of {logits.numel()} logits are NaN or +∞; −∞ is for keys that are not seen"
        )


class SampledLipschitz(NamedTuple):
    """Largest of all null samples: of `slope` of two random vectors, and of `local_lipschitz` at the first of them."""

    pairs: float
    local: float


def sampled_lipschitz(tokens: int, null_samples: int, seed: int, spread: float = 1.0) -> SampledLipschitz:
    """Estimates of the Lipschitz constant from pairs of N logits N(0, spread²) (abdullaev2025 Fig. 1, left).

    They look where such logits lie: neither can exceed 1/2, and both fall short of it where few logits tie at the top.
    """
    parts = [_largest(x * spread, y * spread) for x, y in _drawn(tokens, null_samples, seed)]
    return SampledLipschitz(*map(max, zip(*parts, strict=True)))


def _largest(x: Float[Tensor, "draw token"], y: Float[Tensor, "draw token"]) -> tuple[float, float]:
    return float(slope(x, y).max()), float(local_lipschitz(x).max())


def sampled_perturbation(
    tokens: int, null_samples: int, seed: int, spread: float = 1.0
) -> Float[Tensor, " draw"]:
    """`perturbation` of random logits N(0, spread²) by noise N(0, 1), by draw (abdullaev2025 Fig. 1, right)."""
    return torch.cat([perturbation(x * spread, y) for x, y in _drawn(tokens, null_samples, seed)])


def _drawn(
    tokens: int, null_samples: int, seed: int
) -> Iterator[tuple[Float[Tensor, "draw token"], Float[Tensor, "draw token"]]]:
    """Draws of two standard normal vectors, a few at a time; the same for one seed and length."""
    generator = null_distributions.generator(seed, "softmax", tokens)
    at_once = max(1, _AT_ONCE // tokens)
    for start in range(0, null_samples, at_once):
        shape = (2, min(at_once, null_samples - start), tokens)
        x, y = torch.randn(shape, generator=generator, dtype=torch.float64)
        yield x, y


def sampled_sensitivity(
    tokens: Sequence[int], spreads: Sequence[float] = (1.0,), null_samples: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """How far random logits N(0, spread²) and noise N(0, 1) move softmax, by N (abdullaev2025 Fig. 1), as rows.

    Columns: metric, candidate, tokens (N), spread, value, low, high, null_samples. ``softmax_lipschitz`` is the largest
    of all samples: slope of two vectors (pairs) and exact constant at one (local). ``softmax_perturbation`` is the mean
    over samples, of the logits and of the noise, with its 95 % interval.
    """
    samples_by_metric = {
        (count, spread): sampled
        for count in tokens
        for spread, sampled in zip(spreads, _sampled(count, spreads, null_samples, seed), strict=True)
    }
    rows = []
    for spread in spreads:
        for count in tokens:
            settings = {"tokens": count, "spread": float(spread), "null_samples": null_samples}
            largest, moved = samples_by_metric[count, spread]
            for candidate, value in largest._asdict().items():
                rows.append(
                    {"metric": _SOFTMAX_LIPSCHITZ.name, "candidate": candidate, "value": value, **settings}
                )
            rows.append(
                {
                    "metric": _SOFTMAX_PERTURBATION.name,
                    **mean_interval(pd.Series(moved))._asdict(),
                    **settings,
                }
            )
    columns = ["metric", "candidate", "tokens", "spread", "value", "low", "high", "null_samples"]
    frame = pd.DataFrame(rows).reindex(columns=columns).astype({"tokens": "Int64", "null_samples": "Int64"})
    frame.attrs["provenance"] = shared(
        {
            "analysis": SAMPLING,
            "options": {"tokens": list(tokens), "spreads": list(spreads), "null_samples": null_samples},
            "model": None,
            "inputs": None,
            "seed": seed,
        }
    )
    return frame


def _sampled(
    tokens: int, spreads: Sequence[float], null_samples: int, seed: int
) -> list[tuple[SampledLipschitz, Tensor]]:
    """`sampled_lipschitz` and `sampled_perturbation` of every spread: drawing takes longer than what follows."""
    largest: list[list[tuple[float, float]]] = [[] for _ in spreads]
    moved: list[list[Tensor]] = [[] for _ in spreads]
    for x, y in _drawn(tokens, null_samples, seed):
        for number, spread in enumerate(spreads):
            largest[number].append(_largest(x * spread, y * spread))
            moved[number].append(perturbation(x * spread, y))
    return [
        (SampledLipschitz(*map(max, zip(*parts, strict=True))), torch.cat(shifts))
        for parts, shifts in zip(largest, moved, strict=True)
    ]


class RootFit(NamedTuple):
    """Least squares of a/√N + b, with the ends of the 95 % t-intervals of both (of the misfit, not of sampling)."""

    a: float
    a_low: float
    a_high: float
    b: float
    b_low: float
    b_high: float

    def at(self, tokens: Float[Tensor, " size"]) -> Float[Tensor, " size"]:
        """The curve at some N."""
        return self.a / tokens.double().sqrt() + self.b


def fit_root(tokens: Sequence[int], values: Sequence[float]) -> RootFit:
    """Fit a/√N + b to a value for each N (abdullaev2025 Fig. 1, left). Raises `InputError` for fewer than three N."""
    from scipy import stats

    if len(set(tokens)) < 3:
        raise InputError(f"a fit of a/√N + b with intervals needs 3 different N; got {sorted(set(tokens))}")
    regression = stats.linregress([count**-0.5 for count in tokens], list(values))
    a, b = float(regression.slope), float(regression.intercept)
    room_a, room_b = (
        float(half_width(error, len(tokens) - 2))
        for error in (regression.stderr, regression.intercept_stderr)
    )
    return RootFit(a, a - room_a, a + room_a, b, b - room_b, b + room_b)


def measure(layer: Layer, options: Options) -> Iterator[Measurement]:
    """Local Lipschitz constant of softmax at the logits of every query, how far noise moves it and the head's output.

    Over the queries of a head that see at least two keys.
    """
    attention = softmax_matrix(layer)
    if attention.captured is not None:
        raise NotApplicable(
            "does not attend only by softmax(scale q kᵀ + mask), and its logits are not known"
        )
    v = layer.record.v
    if v is not None:
        v = layer.of_queries(v, layer.total_heads).double()
    groups = groups_of(layer, attention.q)
    parts = [_of_group(attention, v, options, group) for group in groups]
    for parts_of_metric in zip(*parts, strict=True):
        yield together(layer, groups, parts_of_metric, len(attention.q))


def _of_group(
    attention: AttentionMatrix, v: Tensor | None, options: Options, group: Group
) -> list[MetricValues]:
    q, k = group.cut(attention.q), group.cut(attention.k)
    if v is not None:
        v = group.cut(v)
        check_finite("v", v, TOKENS)
    with_nulls = with_null(
        _of_heads(attention, v, options, group, q, k),
        lambda q, k: _of_heads(attention, v, options, group, q, k),
        (q, k),
        options.null_samples,
        group,
    )
    return with_nulls if v is None else [*with_nulls, MetricValues(_VALUE_NORM_RATIO, _norm_ratio(v))]


def _norm_ratio(v: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(v, ord=2) / torch.linalg.matrix_norm(v)


def _of_heads(
    attention: AttentionMatrix, v: Tensor | None, options: Options, group: Group, q: Tensor, k: Tensor
) -> list[MetricValues]:
    """All measures of some queries and keys, a few queries at a time."""
    logits_of = attention.logits
    assert logits_of is not None  # of softmax
    sources = [null_distributions.generator(seed, "noise") for seed in group.seeds.flatten().tolist()]
    pairs = len(sources) * k.shape[-2]
    # torch draws normal numbers sixteen at a time: so parts have those of the whole
    at_once = max(1, _AT_ONCE // pairs // 16) * 16
    parts, outputs = [], []
    for start in range(0, q.shape[-2], at_once):
        rows = slice(start, min(start + at_once, q.shape[-2]))
        logits = logits_of(q[:, :, rows], k, group.inputs, group.tokens, rows)
        drawn = [torch.randn(logits.shape[2:], dtype=torch.float64, generator=source) for source in sources]
        noise = options.sigma * torch.stack(drawn).unflatten(0, logits.shape[:2]).to(logits.device)
        parts.append(_of_queries(logits, noise))
        if v is not None:
            seen = (logits > -torch.inf).sum(-1)
            outputs.append((output_perturbation(logits, noise, v), output_bound(v, seen, options.sigma)))
    columns = [torch.cat(part, -1) for part in zip(*parts, strict=True)]
    constants = _over_queries(*columns)
    for metric, part in zip(
        (_OUTPUT_PERTURBATION, _OUTPUT_PERTURBATION_BOUND), zip(*outputs, strict=True), strict=False
    ):
        constants.append(MetricValues(metric, _mean_of_chosen(torch.cat(part, -1), columns[0])))
    return constants


def _mean_of_chosen(values: Tensor, chosen: Tensor) -> Tensor:
    return torch.where(chosen, values, torch.nan).nanmean(-1)


def _over_queries(chosen: Tensor, constant: Tensor, moved: Tensor, spread: Tensor) -> list[MetricValues]:
    """The measures of heads, over the chosen ones of their queries."""
    largest = constant.masked_fill(~chosen, -torch.inf).amax(-1)
    return [
        MetricValues(_SOFTMAX_LIPSCHITZ, _mean_of_chosen(constant, chosen), columns={"statistic": "mean"}),
        MetricValues(
            _SOFTMAX_LIPSCHITZ,
            largest.masked_fill(~chosen.any(-1), torch.nan),
            columns={"statistic": "max"},
        ),
        MetricValues(_SOFTMAX_PERTURBATION, _mean_of_chosen(moved, chosen)),
        MetricValues(_LOGIT_SPREAD, _mean_of_chosen(spread, chosen)),
    ]


def _of_queries(logits: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    """Of every query whether it sees two keys, its constant, how far noise moves it, and the spread of its logits."""
    seen = logits > -torch.inf
    counts = seen.sum(-1)
    finite_logits = torch.where(seen, logits, 0)
    deviations = torch.where(seen, finite_logits - (finite_logits.sum(-1) / counts)[..., None], 0)
    spread = (deviations.square().sum(-1) / counts).sqrt()
    return counts > 1, local_lipschitz(logits), perturbation(logits, noise), spread


def findings(frame: pd.DataFrame, options: Options) -> list[str]:
    """How sensitive softmax is at the model's own logits, beside random queries and keys of the same mean square."""
    constants = frame[frame["metric"] == _SOFTMAX_LIPSCHITZ.name]
    average, largest = (constants[constants["statistic"] == kind] for kind in ("mean", "max"))
    moved, spread = (
        frame[frame["metric"] == metric.name] for metric in (_SOFTMAX_PERTURBATION, _LOGIT_SPREAD)
    )
    sentences = []
    if len(average) and len(largest):
        mean = over_inputs(average)
        sentences.append(
            f"local Lipschitz constant of softmax {mean.words('.3f')} at the mean query and "
            f"{over_inputs(largest).words('.3f')} at the most sensitive one of a head, of at most 0.5; mean over "
            f"{mean.n} inputs, layers and heads with its 95 % CI over inputs{compare_with_null(average, '.3f')}"
        )
    if len(moved) and len(spread):
        mean = over_inputs(moved)
        sentences.append(
            f"noise of standard deviation {options.sigma:g} on logits of standard deviation "
            f"{over_inputs(spread).words()} moves softmax by {mean.words('.3f')} (L2), mean over {mean.n} inputs"
            f"{compare_with_null(moved, '.3f')}"
        )
    return sentences


def sampling_findings(sampled: pd.DataFrame) -> list[str]:
    """Report the fit and both ends of N of a `sampled_sensitivity` frame of random logits (abdullaev2025 Fig. 1)."""
    sentences = []
    for spread, rows in sampled.groupby("spread", sort=False):
        curves = {
            name: candidate_rows.set_index("tokens")["value"]
            for name, candidate_rows in rows.groupby(rows["candidate"].fillna("moved"))
        }
        pairs, local, moved = (curves[name] for name in ("pairs", "local", "moved"))
        few, many = min(local.index), max(local.index)
        if not sentences:
            fit = fit_root([*pairs.index], [*pairs])
            sentences.append(
                f"Pairs of random logits of standard deviation {spread:g}: a/√N + b with a = {fit.a:.2f} "
                f"[{fit.a_low:.2f}, {fit.a_high:.2f}], b = {fit.b:.3f} [{fit.b_low:.3f}, {fit.b_high:.3f}]."
            )
        sentences.append(
            f"Random logits of standard deviation {spread:g}, {rows['null_samples'].iloc[0]} samples: from N = {few} "
            f"to {many} the largest local constant goes from {local[few]:.3f} to {local[many]:.3f}, the mean move "
            f"under noise from {moved[few]:.3f} to {moved[many]:.3f}."
        )
    return sentences


ANALYSIS = Analysis(
    "softmax-sensitivity",
    "Change of a model's softmax when its logits change: local Lipschitz constants, and noise",
    ("q", "k", "v", "scale", "mask", "attn"),
    measure,
    (
        _SOFTMAX_LIPSCHITZ,
        _SOFTMAX_PERTURBATION,
        _OUTPUT_PERTURBATION,
        _OUTPUT_PERTURBATION_BOUND,
        _VALUE_NORM_RATIO,
        _LOGIT_SPREAD,
    ),
    Options,
    findings=findings,
)
