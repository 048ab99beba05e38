"""The class of analyses, and the registry of the workbench's analyses and those of plug-ins, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Predicate

from workbench.core.errors import InputError, UnknownName
from workbench.core.options import Accepted, NullSamples, Option, check_options, options_of
from workbench.core.plugins import Registry, instance_of
from workbench.frames.metric import METRICS, Metric

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from workbench.analyses.layer import Layer
    from workbench.data.batches import Inputs
    from workbench.frames.measurement import Measurement


def _is_null(name: str) -> bool:
    from workbench.analyses.null_values import SOURCES

    return name in SOURCES


Standardize = Annotated[
    Literal["none", "per-token", "per-feature"],
    "standardize the keys before anything else: none, per-token (over features, as published) or per-feature (over "
    "tokens)",
]

Per = Literal["token", "pair"]
"""Unit of a row in the finer tables: a token, or a pair (query and key, two directions)."""


Method = Literal["auto", "dense", "tiled"]
MAP_ENTRIES = 2**25
"""Entries of a matrix of tokens × tokens up to which it is formed whole unless asked otherwise.

256 MB in float64; 12 heads at 1672 tokens."""


@dataclass(frozen=True)
class OfMatrices:
    """The option of every analysis: how it works with matrices of tokens × tokens, if it needs any."""

    method: Annotated[
        Method,
        "matrices of tokens × tokens: dense forms all of it, in float64; tiled works tile by tile, in memory that "
        "grows with the tokens, with sums in float64; auto is dense up to 2^25 entries (attention maps: over the heads "
        "of an input; others: of one head), then tiled",
    ] = "auto"

    @property
    def map_limit(self) -> int | None:
        """The largest matrices, in entries, that are formed whole; None for all."""
        return {"auto": MAP_ENTRIES, "tiled": 0, "dense": None}[self.method]

    def in_tiles(self, entries: int) -> bool:
        """Whether to work in tiles for matrices of this size."""
        return self.map_limit is not None and entries > self.map_limit


@dataclass(frozen=True)
class OfInputs(OfMatrices):
    """The options of every analysis of inputs."""

    per_input: Annotated[
        bool,
        "rows per input; false: means, or else mean, deviation, 95 % interval and quantiles over inputs, in memory "
        "that does not grow with them",
    ] = True


RowNull = Annotated[
    Literal["uniform", "permutation", "both"],
    "null distribution: uniform (uniform attention over the keys that a query may see), permutation (each query's "
    "weights permuted among these keys), or both, a row for each",
]


def null_kinds(null: str) -> tuple[str, ...]:
    """Return the null distributions that a `RowNull` names."""
    return ("uniform", "permutation") if null == "both" else (null,)


@dataclass(frozen=True)
class OfHeads(OfInputs):
    """Options of an analysis that gives means over inputs and heads, unless it is asked for each."""

    per_head: Annotated[
        bool, "one row per input, layer and head, in place of means and the null distribution of a mean"
    ] = False


Single = Annotated[
    bool,
    "beside the means also one row per input, layer and head, for intervals over inputs from the same run",
]


@dataclass(frozen=True)
class OfValues(OfHeads):
    """Options of an analysis of heads whose null distribution replaces the values."""

    padding: Annotated[
        Literal["mask", "keep"], "mask: only real tokens; keep: padding counts as tokens, as published"
    ] = "mask"
    null_samples: Annotated[NullSamples, "samples of the null distribution, at least 2; 0 leaves it out"] = 20
    null: Annotated[
        Literal["gaussian", "permutation", "rotation", "both", "all", "projection"]
        | Annotated[str, Predicate(_is_null), Accepted("the name of a plug-in's null")],
        "null distribution: gaussian (values of the same shape and mean square), permutation (tokens of the values "
        "permuted), both of these, rotation (tokens of the values rotated at random about their mean), all three, "
        "projection (values of all heads projected at random: the same input, other weights), or a null of a plug-in",
    ] = "both"

    @property
    def nulls(self) -> tuple[str, ...]:
        """The chosen null distributions."""
        several = {"both": ("gaussian", "permutation"), "all": ("gaussian", "permutation", "rotation")}
        return several.get(self.null, (self.null,))

    def shared_values(self, layer: Layer, inputs: Any = slice(None)) -> Tensor | None:
        """Values of all heads of a layer side by side, (batch, 1, token, head · head_dim), of all inputs or some.

        None where no chosen null reads them. Counts the heads that have no others beside them.
        """
        from workbench.analyses.null_values import reads_shared

        if not self.null_samples or not reads_shared(self.nulls):
            return None
        v = layer.site("v")[inputs]
        if "projection" in self.nulls:
            layer.counts.add(
                "heads are alone in their layer: the null projection only mixes the columns of their values, and tests "
                "nothing about the span of these",
                v.new_full(v.shape[:2], v.shape[1] == 1).bool(),
            )
        return v.transpose(1, 2).flatten(2)[:, None]


def runs_again(options: object) -> bool:
    """Return True: an analysis that runs the model again once a batch is captured needs all its layers together."""
    return True


@dataclass(frozen=True)
class Analysis:
    """An analysis by name: its capture sites, metrics and options, and the function that measures one layer.

    Without sites it reads weights, and runs on no inputs. ``options_type`` is the frozen dataclass of its options (see
    `workbench.core.options`); every function here receives an instance.

    Maps and rows of attention, finer than a metric of a head, are separate entries in ``finer``, of the same name, with
    ``per``: their ``measure`` yields frames of rows instead of measurements, and they have no metrics.
    """

    name: str
    title: str
    sites: tuple[str, ...]
    measure: Callable[[Layer, Any], Iterator[Measurement] | Iterator[pd.DataFrame]]
    metrics: tuple[Metric, ...]
    options_type: type = OfInputs
    notes: Callable[[pd.DataFrame, Any], list[str]] = lambda frame, options: []
    """Notes on every result, from its rows and options."""
    sites_of: Callable[[Any], tuple[str, ...]] | None = None
    """The sites for given options, where they depend on them."""
    across: Callable[[Sequence[tuple[Layer, Measurement]], Any], Iterator[Measurement]] | None = None
    """Measurements across all layers of one batch, with ``form`` "across"."""
    of_heads: bool = True
    """Whether it measures single heads, so that some may be chosen."""
    also: tuple[str, ...] = ()
    """Sites that some layers need as well; a file without them will do for the others."""
    counts_nonfinite: bool = False
    """Whether NaN and infinite values are a result rather than an error."""
    cross: Literal["", "keys", "both"] = ""
    """Which axes of cross attention it measures, whose queries and keys are different tokens: none, keys, or both."""
    perturb: Callable[[Inputs, Any, int], Inputs] | None = None
    """A function of (inputs, options, seed) that gives perturbed inputs for a second run."""
    together: Callable[[Any], bool] = lambda options: False
    """Whether a layer is measured beside others of its batch, which are then all in memory at once."""
    of_steps: bool = False
    """Whether it says something of a single query, and so of each token that a model generates."""
    per: Per | None = None
    """Unit of a row, where it yields rows."""
    finer: tuple[Analysis, ...] = ()
    """The same in finer rows."""
    findings: Callable[[pd.DataFrame, Any], list[str]] = lambda frame, options: []
    """Findings of one run, in sentences that begin without a capital: see `workbench.findings`."""
    pooled: tuple[str, ...] = ()
    """Options (or "checkpoint") over whose values runs of a model are described together; rows have a column each."""

    @property
    def options(self) -> Mapping[str, Option]:
        """Its options: defaults, meanings, and which values they take."""
        return options_of(self.options_type)

    def asked(self, options: Mapping[str, Any]) -> Any:
        """The options as its functions receive them, complete and valid.

        Raises `UnknownName` for an option that does not exist, and `InputError` for a value that it does not take.
        """
        name = self.name if self.per is None else f"{self.name} per {self.per}"
        return check_options(self.options_type, options, name)

    def rows_per(self, per: str | None) -> Analysis:
        """Itself for None, else its rows of tokens or pairs. Raises `InputError` where it has no such rows."""
        entries = {entry.per: entry for entry in (self, *self.finer)}
        if per not in entries:
            kinds = " or ".join(repr(entry.per) for entry in self.finer)
            takes = f"per must be {kinds}, or none" if kinds else "it gives metrics alone: leave per out"
            raise InputError(f"{self.name} has no rows per {per!r}; {takes}")
        return entries[per]

    def measured(self, layer: Layer, options: Any) -> Iterator[Measurement] | Iterator[pd.DataFrame]:
        """Yield the measurements of one layer, which an `InputError` names."""
        try:
            yield from self.measure(layer, options)
        except InputError as error:
            named = f"layer {layer.index}" in str(error)
            raise error if named else InputError(f"layer {layer.index}: {error}") from None

    def reads(self, options: Any) -> tuple[str, ...]:
        """The sites that a run with these options captures."""
        return self.sites if self.sites_of is None else self.sites_of(options)


def _our_entries() -> dict[str, str]:
    """Return the place of each analysis by the name of its file, which is not imported: that takes torch."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    modules = [file.stem for file in files if "\nANALYSIS = " in file.read_text(encoding="utf-8")]
    return {name.replace("_", "-"): f"workbench.analyses.{name}:ANALYSIS" for name in modules}


class Analyses(Registry[Analysis]):
    """Analyses by name; one that is loaded or joins registers its metrics."""

    def __setitem__(self, name: str, entry: Analysis) -> None:
        for metric in entry.metrics:
            METRICS.register(metric)
        super().__setitem__(name, entry)

    def load(self) -> None:
        """Load every analysis, so that all metrics are registered."""
        for name in [*self]:
            self[name]


ANALYSES = Analyses(_our_entries(), "workbench.analyses", instance_of(Analysis))


def find_analysis(name: str, options: Mapping[str, Any], per: str | None = None) -> tuple[Analysis, Any]:
    """An analysis, or its rows of tokens or pairs, and its options as its functions receive them, complete and valid.

    Raises `UnknownName` for an analysis or option that does not exist, with the nearest names, and
    `InputError` for a value of the wrong kind, or rows that the analysis does not have.
    """
    if name not in ANALYSES:
        raise UnknownName("analysis", name, ANALYSES)
    analysis = ANALYSES[name].rows_per(per)
    return analysis, analysis.asked(options)


def check_request(name: str, options: Mapping[str, Any], per: str | None = None) -> dict[str, Any]:
    """The options of an analysis, complete and valid, by name; raises what `find_analysis` raises."""
    return asdict(find_analysis(name, options, per)[1])
