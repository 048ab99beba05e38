"""``analyze``: one named analysis over a model and its inputs, or over a file of q, k, v, as a tidy frame."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor, nn

from workbench import measurements
from workbench.analyses.attention_maps import ReportRules, attention_report
from workbench.errors import InputError, UnknownName
from workbench.measurements import Layer, Measurement, NotMeasured, Rows, Tally
from workbench.provenance import versions
from workbench.recording import Capture
from workbench.selection import parse_numbers, ranges
from workbench.streaming import Part, Stream, capture_inputs, stream_file, stream_model

if TYPE_CHECKING:
    from workbench.batches import Inputs
    from workbench.models import LoadedModel

__all__ = ["ANALYSES", "Analysis", "Option", "analyze", "capture_inputs", "check_request"]

SMALLEST = math.log(sys.float_info.min)  # nats
PROGRESS_AFTER = 2.0  # seconds of expected work from which a progress bar is shown


@dataclass(frozen=True)
class Option:
    """A setting of one analysis: its default, what it means, and what turns a given value into a valid one.

    ``accept`` returns the value to use, or raises `ValueError` saying what would be accepted.
    """

    default: Any
    help: str
    accept: Callable[[Any], Any]


@dataclass(frozen=True)
class Analysis:
    """An analysis by name: the capture sites it reads, its options, and what it measures in one layer."""

    name: str
    title: str
    sites: tuple[str, ...]
    options: Mapping[str, Option]
    measure: Callable[[Layer, Mapping[str, Any]], Iterator[Measurement]]
    findings: Callable[[pd.DataFrame, Mapping[str, Any]], list[str]] = lambda frame, options: []
    """Sentences worth telling beside the numbers."""
    per_head: bool = True
    counts_nonfinite: bool = False
    """Whether NaN and infinite values are a result rather than an error."""


def whole_number(minimum: int, *words: str) -> Callable[[Any], Any]:
    """Accept an int of at least ``minimum``, or one of some words."""
    expected = " or ".join([*map(repr, words), f"a whole number from {minimum} up"])

    def accept(value: Any) -> Any:
        if isinstance(value, str) and value in words:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
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


def number(low: float, high: float) -> Callable[[Any], Any]:
    """Accept a finite number between two bounds, both included."""

    def accept(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
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
    report = attention_report(frame, ReportRules(**options))
    told = [
        f"layer {row['layer']} head {row['head']}: {row['finding']} ({row['reason']}; {row['value']:.3g}"
        + (f", key {row['key']})" if pd.notna(row["key"]) else ")")
        for row in report.head(10).to_dict("records")
    ]
    more = len(report) - len(told)
    return told + ([f"and {more} more findings: attention_report lists them"] if more else [])


def _draws(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value == 1:
        raise ValueError("0, or a whole number from 2 up")
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
        "draws": Option(20, f"draws of the chance level of {what}, at least 2; 0 leaves it out", _draws),
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
        },
        measurements.gram_spectrum,
        findings=_spectrum_findings,
    ),
    Analysis(
        "attention-map",
        "Entropy, reach and sinks of attention; dead heads and non-finite values",
        ("mask", "attn", "output"),
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
        },
        measurements.attention_map,
        findings=_map_findings,
        counts_nonfinite=True,
    ),
    Analysis(
        "token-similarity",
        "Mean cosine similarity of tokens through depth",
        ("hidden",),
        {
            "null": Option(
                "gaussian",
                "chance: gaussian (random directions, exact) or permutation (features shuffled over tokens)",
                one_of("gaussian", "permutation"),
            ),
            "draws": Option(
                20, "draws of the permutation null, at least 2; 0 leaves out the chance level", _draws
            ),
        },
        measurements.token_similarity,
        per_head=False,
    ),
)
ANALYSES: dict[str, Analysis] = {analysis.name: analysis for analysis in _REGISTERED}


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


def analyze(
    name: str,
    *,
    model: str | LoadedModel | nn.Module | None = None,
    inputs: str | Inputs | Tensor | Mapping[str, Tensor] | None = None,
    qkv: str | Path | Capture | None = None,
    n: int | None = None,
    seed: int = 0,
    layers: Any = None,
    heads: Any = None,
    checkpoint: str | int | None = None,
    preprocessing: str = "paper",
    batch_size: int = 8,
    device: Any = None,
    dtype: Any = None,
    progress: bool = False,
    **options: Any,
) -> pd.DataFrame:
    """Run one analysis and return its tidy frame, one row per number (columns: `workbench.results.COLUMNS`).

    Give a ``model`` (a spec, what `load` returned, or any torch module) with ``inputs`` (a spec, what
    `inputs` returned, or the batch itself), or ``qkv``, a file or capture holding q, k, v. ``n``, ``seed``
    and ``preprocessing`` choose and prepare inputs given by spec; ``checkpoint``, ``device`` and ``dtype``
    load a model given by spec. ``layers`` and ``heads`` are numbers or "0,3-5"; heads of grouped queries are
    those of the keys in ``gram-spectrum``. Only the sites the analysis reads are captured, ``batch_size``
    inputs at a time; rows come by layer, metric and input and do not depend on it. ``progress`` shows a bar
    where the work takes longer than two seconds. ``options`` are the analysis' own:
    ``ANALYSES[name].options``.

    ``frame.attrs["provenance"]`` holds what the numbers come from; ``frame.attrs["notes"]`` what a reader
    should know (layers left out, findings).

    Raises `UnknownName` for an unknown analysis, option, model or layer, `InputError` for values that do not
    fit, and what `load`, `inputs` and `capture` raise.
    """
    chosen = check_request(name, options)
    analysis = ANALYSES[name]
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise InputError(f"batch_size must be a whole number from 1 up; got {batch_size!r}")
    if heads is not None and not analysis.per_head:
        raise InputError(f"{name} measures whole layers; leave out heads={heads!r}")
    parse_numbers("head", heads)
    if qkv is not None and model is None and inputs is None:
        stream = stream_file(qkv, analysis.sites, layers, batch_size)
    elif qkv is not None or model is None or inputs is None:
        raise InputError("give model and inputs, or qkv (a file of queries, keys and values), and not both")
    else:
        stream = stream_model(
            model, inputs, analysis.sites, layers, batch_size, keep_nonfinite=analysis.counts_nonfinite,
            n=n, seed=seed, checkpoint=checkpoint, preprocessing=preprocessing, device=device, dtype=dtype,
        )  # fmt: skip
    run = _Run(analysis, chosen, stream, seed, heads)
    with _bar(progress, analysis.title, stream.size) as advance:
        for part in stream:
            run.add(part)
            advance(len(part.ids))
    settings = {
        "layers": layers, "heads": heads, "batch_size": batch_size, "device": device, "dtype": dtype
    }  # fmt: skip
    return run.frame({key: None if value is None else str(value) for key, value in settings.items()})


class _Run:
    """Gathers the rows and notes of one analysis, part by part."""

    def __init__(
        self, analysis: Analysis, options: Mapping[str, Any], stream: Stream, seed: int, heads: Any
    ) -> None:
        self.analysis, self.options, self.stream = analysis, options, stream
        self.seed, self.heads = seed, heads
        self.wanted = set(parse_numbers("head", heads) or ())
        self.met: set[int] = set()
        self.most = 0
        # analyses with the option say what they measure head by head; the others have no means to take
        self.rows = Rows(aggregate=not options.get("per_head", True))
        self.tally = Tally()
        self.left_out: dict[str, list[int]] = {}

    def add(self, part: Part) -> None:
        for record in part.capture:
            layer = Layer(record, part.ids, part.capture.tokens, self.seed, self.heads, tally=self.tally)
            try:
                for measurement in self.analysis.measure(layer, self.options):
                    self.rows.add(measurement, layer)
            except NotMeasured as reason:
                indices = self.left_out.setdefault(str(reason), [])
                if record.index not in indices:
                    indices.append(record.index)
            self.met |= set(layer.heads)
            self.most = max(self.most, layer.total_heads)

    def frame(self, settings: dict[str, Any]) -> pd.DataFrame:
        notes = [
            f"layer{'s' if len(indices) > 1 else ''} {ranges(indices)} left out: {reason}"
            for reason, indices in self.left_out.items()
        ]
        if not self.rows:
            raise InputError(f"{self.analysis.name}: nothing to measure; " + "; ".join(notes))
        absent = {head for head in self.wanted if head >= 0} - self.met
        if absent and self.most:
            raise InputError(f"there is no head {min(absent)}: heads are 0 to {self.most - 1}")
        model = self.stream.model
        frame = self.rows.frame(model=model["spec"], checkpoint=model.get("checkpoint"))
        notes += [*self.tally.notes(), *self.rows.notes(), *self.stream.notes]
        notes += [*_silent_nulls(frame), *self.analysis.findings(frame, self.options)]
        frame.attrs["notes"] = notes
        frame.attrs["provenance"] = {
            "analysis": self.analysis.name,
            "options": dict(self.options),
            "model": model,
            "inputs": self.stream.inputs,
            "seed": self.seed,
            "settings": settings,
            "notes": notes,
            "versions": versions(),
        }
        return frame


def _silent_nulls(frame: pd.DataFrame) -> list[str]:
    """Which quantities chance cannot move: all draws agree, and there is no z."""
    drawn = frame[frame["null_low"].notna()]
    if drawn.empty:
        return []
    places = ["metric", "axis", "statistic", "convention", "candidate", "null"]
    moved = drawn["z"].notna().groupby([drawn[place] for place in places], dropna=False, sort=False).any()
    return [
        " ".join(str(part) for part in place[:-1] if pd.notna(part))
        + f": all draws of the {place[-1]} null agree, so it has no z"
        for place in moved.index[~moved]
    ]


@contextmanager
def _bar(wanted: bool, title: str, total: int) -> Generator[Callable[[int], None]]:
    """A function that tells how many inputs are done; shows a bar once the work turns out to be long."""
    if not wanted:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    bar = Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True))
    task = bar.add_task(title, total=total)
    started = time.perf_counter()

    def advance(done: int) -> None:
        bar.advance(task, done)
        elapsed = time.perf_counter() - started
        if not bar.live.is_started and elapsed * total > PROGRESS_AFTER * bar.tasks[0].completed:
            bar.start()

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()
