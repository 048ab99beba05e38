"""The analyses by name: what each reads, its options, and what it measures in a layer."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench import measurements
from workbench.analyses.attention_maps import ReportRules, attention_report
from workbench.analyses.coding_rate import compression_shares
from workbench.captures import PROJECTIONS
from workbench.core.errors import InputError, UnknownName
from workbench.core.plugins import Registry, instance_of
from workbench.core.typed import literal, read_typed
from workbench.data.corruptions import CORRUPTIONS, SEVERITIES
from workbench.measurements import Layer, Measurement
from workbench.measurements.class_attention import QUERIES
from workbench.measurements.segments import INK

if TYPE_CHECKING:
    from workbench.data.batches import Inputs

SMALLEST = math.log(sys.float_info.min)  # nats


@dataclass(frozen=True)
class Option:
    """A setting of one analysis: its default, what it means, and what turns a given value into a valid one.

    ``accept`` returns the value to use, or raises `ValueError` saying what would be accepted.
    """

    default: Any
    help: str
    accept: Callable[[Any], Any]

    def takes(self, value: Any) -> bool:
        """Whether a value is accepted."""
        try:
            self.accept(value)
        except ValueError:
            return False
        return True


def read_options(typed: Mapping[str, str], options: Mapping[str, Option]) -> dict[str, Any]:
    """What texts typed at a command line mean for these options; those of no option are for the check to refuse."""
    return {
        name: read_typed(text, options[name].takes) if name in options else literal(text)
        for name, text in typed.items()
    }


@dataclass(frozen=True)
class Analysis:
    """An analysis by name: the capture sites it reads, its options, and what it measures in one layer.

    Without sites it reads weights, and runs on no inputs.
    """

    name: str
    title: str
    sites: tuple[str, ...]
    options: Mapping[str, Option]
    measure: Callable[[Layer, Mapping[str, Any]], Iterator[Measurement]]
    findings: Callable[[pd.DataFrame, Mapping[str, Any]], list[str]] = lambda frame, options: []
    """Sentences worth telling beside the numbers."""
    sites_of: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None
    """The sites for given options, where they depend on them."""
    across: (
        Callable[[Sequence[tuple[Layer, Measurement]], Mapping[str, Any]], Iterator[Measurement]] | None
    ) = None
    """What follows from the measurements of all layers of one batch, its ``form`` "across"."""
    per_head: bool = True
    also: tuple[str, ...] = ()
    """Sites that some layers need as well; a file without them will do for the others."""
    counts_nonfinite: bool = False
    """Whether NaN and infinite values are a result rather than an error."""
    perturb: Callable[..., Inputs] | None = None
    """What to run the model on beside the inputs: of (inputs, options, seed)."""

    together: Callable[[Mapping[str, Any]], bool] = lambda options: False
    """Whether a layer is measured beside others of its batch, which must then all be held at once."""

    def reads(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The sites that a run with these options captures."""
        return self.sites if self.sites_of is None else self.sites_of(options)


def whole_number(minimum: int, *words: str, most: float = math.inf) -> Callable[[Any], Any]:
    """Accept an int of at least ``minimum`` and at most ``most``, or one of some words."""
    upwards = "up" if most == math.inf else f"to {most}"
    expected = " or ".join([*map(repr, words), f"a whole number from {minimum} {upwards}"])

    def accept(value: Any) -> Any:
        if isinstance(value, str) and value in words:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= most:
            raise ValueError(expected)
        return value

    return accept


def one_of(*words: str) -> Callable[[Any], Any]:
    """Accept one of some words."""

    def accept(value: Any) -> Any:
        if value not in words:
            raise ValueError(" or ".join(map(repr, words)))
        return value

    return accept


def number(low: float, high: float, *, above: bool = False) -> Callable[[Any], Any]:
    """Accept a number between two bounds, both included, or with ``above`` all but the lower; a bound may be inf."""
    upwards = "up" if high == math.inf else f"to {high:g}"

    def accept(value: Any) -> float:
        right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not right or not low <= value <= high or (above and value == low):
            raise ValueError(f"a number {'above' if above else 'from'} {low:g} {upwards}")
        return float(value)

    return accept


def _spectrum_findings(frame: pd.DataFrame, options: Mapping[str, Any]) -> list[str]:
    trace = frame.loc[frame["metric"] == "gram_log_trace", "value"]
    equal = int((trace == -math.inf).sum())
    tiny = int((trace < SMALLEST).sum()) - equal
    told = []
    if equal:
        told.append(f"{equal} of {len(trace)} spectra are zero: all keys of the head are equal")
    if tiny and options["normalize"] == "none":
        told.append(
            f"{tiny} of {len(trace)} spectra are too small for float64 and read 0; normalize=trace keeps them"
        )
    return told


def _map_findings(frame: pd.DataFrame, options: Mapping[str, Any]) -> list[str]:
    rules = {rule.name: options[rule.name] for rule in fields(ReportRules)}
    report = attention_report(frame, ReportRules(**rules))
    told = [
        f"layer {row['layer']} head {row['head']}: {row['finding']} ({row['reason']}; {row['value']:.3g}"
        + (f", key {row['key']})" if pd.notna(row["key"]) else ")")
        for row in report.head(10).to_dict("records")
    ]
    more = len(report) - len(told)
    return told + ([f"and {more} more findings: attention_report lists them"] if more else [])


def _rate_findings(frame: pd.DataFrame, options: Mapping[str, Any]) -> list[str]:
    shares = compression_shares(frame)
    told = shares[shares["step"] == "attention"].to_dict("records")
    return [
        f"attention lowers R_c^var in {row['lowered']} of {row['steps']} layers with membership {row['convention']}"
        for row in told
    ]


def _eps(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError("a number above 0, or none")
    return float(value)


def _draws(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value == 1:
        raise ValueError("0, or a whole number from 2 up")
    return value


def _masks(value: Any) -> Any:
    if (
        value is not None
        and value != INK
        and not (isinstance(value, str) and Path(value).expanduser().is_dir())
    ):
        raise ValueError(f"{INK!r}, a folder that is there, or none")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _standardize(what: str = "the keys before anything else") -> Option:
    return Option(
        "none",
        f"standardize {what}: none, per-token (over features, as published) or per-feature (over tokens)",
        one_of("none", "per-token", "per-feature"),
    )


def _chance(what: str) -> dict[str, Option]:
    """The options of an analysis of heads whose chance level comes from drawn values."""
    return {
        "padding": Option(
            "mask", "mask: real tokens alone; keep: padding counts as tokens, as published",
            one_of("mask", "keep"),
        ),
        "null_samples": Option(20, f"null samples of {what}, at least 2; 0 leaves it out", _draws),
        "null": Option(
            "both",
            "chance: gaussian (values of the same shape and mean square), permutation (tokens of the values "
            "permuted) or both",
            one_of("gaussian", "permutation", "both"),
        ),
        "per_head": Option(
            False, "one row per input, layer and head, in place of means with the chance level of a mean", _flag
        ),
    }  # fmt: skip


def _on_masks(what: str) -> dict[str, Option]:
    """The options of an analysis that compares patches with masks."""
    return {
        "masks": Option(
            None,
            f"{what}: a folder with one mask image per input, of its name; ink (bright patches, for the bundled "
            "digits); or none",
            _masks,
        ),
        "null_samples": Option(
            20, "null samples, patches of the mask permuted, at least 2; 0 leaves it out", _draws
        ),
    }


_RULES = ReportRules()
_REGISTERED = (
    Analysis(
        "gram-spectrum",
        "Spectrum of the centred Gram matrix of the keys",
        ("k", "scale"),
        {
            "max_rank": Option(
                "head_dim",
                "how many eigenvalues per head: a number, head_dim (as the papers' tables) or all",
                whole_number(1, "head_dim", "all"),
            ),
            "standardize": _standardize(),
            "normalize": Option(
                "none",
                "none: eigenvalues; trace: each one's share of their sum, which no key scale makes underflow",
                one_of("none", "trace"),
            ),
            "null_samples": Option(
                0,
                "null samples, Gaussian keys of the same shape and mean square, at least 2; each costs as "
                "much as the spectrum itself; 0 leaves it out",
                _draws,
            ),
        },
        measurements.gram_spectrum,
        findings=_spectrum_findings,
        across=measurements.profile_of_spectra,
    ),
    Analysis(
        "attention-map",
        "Entropy, reach and sinks of attention; diversity of heads, dead ones, non-finite values",
        ("mask", "attn", "head_out"),
        {
            "dead_norm": Option(
                _RULES.dead_norm,
                "report a head whose output norm is below this share of its layer's",
                number(0, 1),
            ),
            "dead_entropy": Option(
                _RULES.dead_entropy,
                "report a head whose entropy is above this share of its maximum",
                number(0, 1),
            ),
            "sink_share": Option(
                _RULES.sink_share,
                "report a head in which one key receives more than this share",
                number(0, 1),
            ),
            "sink_over_uniform": Option(
                _RULES.sink_over_uniform,
                "and more than this many times what even attention would give it",
                number(0, 1e6),
            ),
            "null_samples": Option(
                4,
                "null samples of attention_diversity, keys permuted, at least 2; 0 leaves it out",
                _draws,
            ),
        },
        measurements.attention_map,
        findings=_map_findings,
        counts_nonfinite=True,
    ),
    Analysis(
        "class-attention",
        "What the class token attends to: prefix tokens, how evenly, how far apart, on a mask",
        ("attn",),
        {
            "query": Option(
                "auto",
                "whose attention: auto (the class token; in causal text models, which have none, the last token), mean "
                "(over all queries), first or last",
                one_of(*QUERIES),
            ),
            "rollout": Option(
                False, "also roll attention out through the layers up to each (all are then needed)", _flag
            ),
            "tokens": Option(
                False, "also a row for each token (rank), with the attention it receives", _flag
            ),
            **_on_masks("foreground to compare with (what is not black)"),
            "per_head": Option(
                False,
                "one row per input, layer and head, in place of means with the chance level of a mean",
                _flag,
            ),
        },
        measurements.class_attention,
        together=lambda options: options["rollout"],
    ),
    Analysis(
        "token-similarity",
        "Mean cosine similarity of tokens through depth",
        ("resid_post",),
        {
            "null": Option(
                "gaussian",
                "chance: gaussian (random directions, exact) or permutation (features shuffled over tokens)",
                one_of("gaussian", "permutation"),
            ),
            "null_samples": Option(
                20, "draws of the permutation null, at least 2; 0 leaves out the chance level", _draws
            ),
            "sites": Option(
                "resid_post",
                "where: hidden (after the block), input (of the attention), resid_mid, or all three",
                one_of("resid_post", "input", "resid_mid", "all"),
            ),
            "prefix": Option(
                "keep",
                "class, distillation and register tokens: keep, remove or both",
                one_of("keep", "remove", "both"),
            ),
            "mean_token": Option(
                "keep",
                "the mean of an input's tokens: keep, remove (from every token) or both",
                one_of("keep", "remove", "both"),
            ),
            "effective_rank": Option(
                False, "also the effective rank of the tokens, from singular values", _flag
            ),
            "rate": Option(
                "none",
                "fit: also the rate r per layer at which tokens grow alike, 1 − cos = δ exp(−r layer), by least "
                "squares on logarithms; or none",
                one_of("none", "fit"),
            ),
        },
        measurements.token_similarity,
        sites_of=measurements.sites_of_similarity,
        across=measurements.rates_of_similarity,
        per_head=False,
    ),
    Analysis(
        "value-similarity",
        "Similarity of the values V with the kernel-PCA values V̇",
        ("k", "v", "scale"),
        {
            "axis": Option(
                "both",
                "features: compare columns of V and V̇ (as the text has it); tokens: rows (as its code); both",
                one_of("tokens", "features", "both"),
            ),
            "statistic": Option(
                "both", "over the matched pairs: max, mean or both", one_of("max", "mean", "both")
            ),
            "standardize": _standardize(),
            **_chance("every similarity"),
        },
        measurements.similarity_of_values,
    ),
    Analysis(
        "eigenvector-test",
        "Are the values made of eigenvectors of the centred Gram matrix",
        ("k", "v", "scale"),
        {
            "precision": Option(
                "float64",
                "float64, or float32 as published: what rounding alone does to γ",
                one_of("float64", "float32"),
            ),
            "noise": Option(
                0.1, "standard deviation of what is added to the perturbed eigenvectors", number(0, 1e6)
            ),
            "standardize": _standardize(),
            **_chance("inconsistency, eigen_residual and span_share"),
        },
        measurements.eigenvectors_of_values,
    ),
    Analysis(
        "projection-error",
        "Do head outputs project the queries on the principal axes",
        ("q", "k", "v", "scale", "mask", "head_out"),
        {
            "convention": Option(
                "all",
                "teo2024-text, teo2024-code, saritas2025, exact or all",
                one_of("teo2024-text", "teo2024-code", "saritas2025", "exact", "all"),
            ),
            "standardize": Option(
                "none",
                "none, or per-token: q and k over features, and attention from them (teo2024-code always does)",
                one_of("none", "per-token"),
            ),
            **_chance("the exact projection error"),
        },
        measurements.errors_of_projection,
    ),
    Analysis(
        "membership",
        "Tokens as members of heads: how evenly, and along which segments",
        ("input", "v"),
        {
            **_on_masks("segmentation to compare with"),
            "per_head": Option(
                False,
                "one row per input and layer, with the share of every head, in place of means with the chance level "
                "of a mean",
                _flag,
            ),
        },
        measurements.membership_of_tokens,
        per_head=False,
    ),
    Analysis(
        "coding-rate",
        "Coding rates of the tokens before and after attention",
        ("input", "v", "resid_mid", "resid_post"),
        {
            "eps": Option(
                None,
                "distortion ε of the rates, in the unit of the tokens; none: d/ε² = 1 with d the width of a token, as "
                "the trained projections have absorbed it",
                _eps,
            ),
            "membership": Option(
                "layer",
                "layer: as the layer itself groups its tokens (softmax: ours, from its value projections); uniform: "
                "every token in all heads alike",
                one_of("layer", "uniform"),
            ),
            "normalize": Option(
                "layer",
                "layer: streams pass through the norm before the layer's attention, so that they compare with its "
                "input; none: as they are",
                one_of("layer", "none"),
            ),
        },
        measurements.coding_rates,
        findings=_rate_findings,
        per_head=False,
    ),
    Analysis(
        "subspaces",
        "Subspaces that the heads read: coherence and angles, from the weights alone",
        (),
        {
            "projection": Option(
                "v",
                "whose directions: those of the projection to v, q or k (where one serves all, as in TSSA, that one)",
                one_of(*PROJECTIONS),
            ),
            "null_samples": Option(
                20, "null samples, random directions, at least 2; 0 leaves it out", _draws
            ),
        },
        measurements.subspaces_of_heads,
    ),
    Analysis(
        "position-logits",
        "Attention logits split by content and position",
        ("input", "q", "k", "scale", "mask", "position"),
        {
            "null_samples": Option(
                20,
                "null samples of the cross terms, positions shuffled over tokens, at least 2; 0 leaves it "
                "out",
                _draws,
            ),
            "per_head": Option(
                False,
                "one row per input, layer and head, in place of means with the chance level of a mean",
                _flag,
            ),
        },
        measurements.position_logits,
    ),
    Analysis(
        "attention-spectrum",
        "Spectrum of attention and of the Primal kernel; r-scores, and the values beside the right singular vectors",
        ("q", "k", "v", "scale", "mask", "attn", "head_out"),
        {
            "max_rank": Option(
                "all", "how many singular values per head: a number or all", whole_number(1, "all")
            ),
            **_chance("every number: random q and k for the spectra, random values for the rest"),
        },
        measurements.attention_spectrum,
        also=("input",),  # of which Primal-Attention takes samples
    ),
    Analysis(
        "softmax-sensitivity",
        "How far a change of its own logits moves a model's softmax: local Lipschitz constants, and noise",
        ("q", "k", "scale", "mask", "attn"),
        {
            "sigma": Option(
                1.0, "standard deviation of the noise that is added to the logits", number(0, 1e6)
            ),
            "null_samples": Option(
                20, "null samples, random q and k of the same size, at least 2; 0 leaves it out", _draws
            ),
            "per_head": Option(
                False,
                "one row per input, layer and head, in place of means with the chance level of a mean",
                _flag,
            ),
        },
        measurements.softmax_sensitivity,
    ),
    Analysis(
        "robust-components",
        "What RPC-Attention splits off its keys: how sparse, how much, and whether the parts add up",
        ("k",),
        {
            "per_head": Option(False, "one row per input, layer and head, in place of means", _flag),
        },
        measurements.robust_components,
    ),
    Analysis(
        "filter-kernels",
        "Attention beside fitted Gaussian, non-local-means and bilateral kernels",
        ("input", "q", "k", "mask", "attn"),
        {
            "content": Option(
                "both",
                "what contents are: tokens (of the attention's input, the paper's W = I), heads (queries and keys, its "
                "W = W_QᵀW_K) or both",
                one_of("tokens", "heads", "both"),
            ),
            "null_samples": Option(
                4, "null samples, the kernel's tokens permuted, at least 2; 0 leaves it out", _draws
            ),
            "per_head": Option(False, "one row per input, layer and head, in place of means", _flag),
        },
        measurements.filter_kernels,
    ),
    Analysis(
        "snr",
        "Signal and noise before and after attention: does the residual connection raise their ratio",
        ("resid_pre", "attn_out", "resid_mid", "resid_post"),
        {
            "noise": Option(
                "gaussian-noise",
                "what is done to the pictures: gaussian-noise, impulse-noise (salt and pepper), defocus-blur, or "
                "another of the corruptions",
                one_of(*CORRUPTIONS),
            ),
            "severity": Option(
                3, "how strongly, from 1 to 5", whole_number(SEVERITIES[0], most=SEVERITIES[-1])
            ),
            "centre": Option(
                False,
                "take the mean of the tokens off the signal: the paper subtracts what tokens collapse to, where that "
                "is not zero",
                _flag,
            ),
            "per_head": Option(False, "one row per input and layer, in place of means", _flag),
        },
        measurements.signal_and_noise,
        per_head=False,
        perturb=measurements.noisy_inputs,
        together=lambda options: True,  # with the same layer of the perturbed inputs
    ),
)
_PER_INPUT = Option(
    True,
    "rows per input; false: means, or else mean, deviation, 95 % interval and quantiles over inputs, in memory that "
    "does not grow with them",
    _flag,
)


def _with_means(name: str, value: Any) -> Analysis:
    """The analysis with the option that every analysis of inputs has."""
    analysis = instance_of(Analysis)(name, value)
    options = {**analysis.options, "per_input": _PER_INPUT}
    return replace(analysis, options=options) if analysis.sites else analysis


ANALYSES: Registry[Analysis] = Registry(
    {analysis.name: _with_means(analysis.name, analysis) for analysis in _REGISTERED},
    "workbench.analyses",
    _with_means,
)


def check_request(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an analysis, complete and valid.

    Raises `UnknownName` for an analysis or option that does not exist, with the nearest names, and
    `InputError` for a value of the wrong kind.
    """
    if name not in ANALYSES:
        raise UnknownName("analysis", name, ANALYSES)
    known = ANALYSES[name].options
    for option in options:
        if option not in known:
            raise UnknownName(f"option of {name}", option, known)
    complete = {}
    for option, rule in known.items():
        try:
            complete[option] = rule.accept(options.get(option, rule.default))
        except ValueError as error:
            raise InputError(f"{name}: {option} must be {error}; got {options[option]!r}") from None
    return complete
