"""What an analysis is: the capture sites it reads, its options, its metrics, and what it measures in one layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from workbench.core.errors import InputError
from workbench.core.options import NullSamples, Option, check_options, options_of
from workbench.frames.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd

    from workbench.analyses.layer import Layer
    from workbench.data.batches import Inputs
    from workbench.frames.measurement import Measurement


Standardize = Annotated[
    Literal["none", "per-token", "per-feature"],
    "standardize the keys before anything else: none, per-token (over features, as published) or per-feature (over "
    "tokens)",
]


@dataclass(frozen=True)
class OfInputs:
    """The option of every analysis of inputs."""

    per_input: Annotated[
        bool,
        "rows per input; false: means, or else mean, deviation, 95 % interval and quantiles over inputs, in memory "
        "that does not grow with them",
    ] = True


@dataclass(frozen=True)
class OfHeads(OfInputs):
    """Options of an analysis that gives means over inputs and heads, unless it is asked for each."""

    per_head: Annotated[
        bool, "one row per input, layer and head, in place of means and the null distribution of a mean"
    ] = False


@dataclass(frozen=True)
class OfValues(OfHeads):
    """Options of an analysis of heads whose null distribution comes from other values."""

    padding: Annotated[
        Literal["mask", "keep"], "mask: real tokens alone; keep: padding counts as tokens, as published"
    ] = "mask"
    null_samples: Annotated[NullSamples, "samples of the null distribution, at least 2; 0 leaves it out"] = 20
    null: Annotated[
        Literal["gaussian", "permutation", "both"],
        "null distribution: gaussian (values of the same shape and mean square), permutation (tokens of the values "
        "permuted) or both",
    ] = "both"

    @property
    def nulls(self) -> tuple[str, ...]:
        """The chosen null distributions."""
        return ("gaussian", "permutation") if self.null == "both" else (self.null,)


@dataclass(frozen=True)
class Analysis:
    """An analysis by name: the capture sites it reads, its metrics and options, and what it measures in one layer.

    Without sites it reads weights, and runs on no inputs. ``options_type`` is the frozen dataclass of its options (see
    `workbench.core.options`), one of which every function here receives.
    """

    name: str
    title: str
    sites: tuple[str, ...]
    measure: Callable[[Layer, Any], Iterator[Measurement]]
    metrics: tuple[Metric, ...]
    options_type: type = OfInputs
    findings: Callable[[pd.DataFrame, Any], list[str]] = lambda frame, options: []
    """Sentences worth telling beside the numbers."""
    sites_of: Callable[[Any], tuple[str, ...]] | None = None
    """The sites for given options, where they depend on them."""
    across: Callable[[Sequence[tuple[Layer, Measurement]], Any], Iterator[Measurement]] | None = None
    """What follows from the measurements of all layers of one batch, its ``form`` "across"."""
    of_heads: bool = True
    """Whether it measures single heads, of which some may be chosen."""
    also: tuple[str, ...] = ()
    """Sites that some layers need as well; a file without them will do for the others."""
    counts_nonfinite: bool = False
    """Whether NaN and infinite values are a result rather than an error."""
    perturb: Callable[[Inputs, Any, int], Inputs] | None = None
    """What to run the model on beside the inputs: of (inputs, options, seed)."""
    together: Callable[[Any], bool] = lambda options: False
    """Whether a layer is measured beside others of its batch, which must then all be held at once."""

    @property
    def options(self) -> Mapping[str, Option]:
        """Its options: defaults, meanings, and which values they take."""
        return options_of(self.options_type)

    def asked(self, options: Mapping[str, Any]) -> Any:
        """The options as its functions receive them, complete and valid.

        Raises `UnknownName` for an option that does not exist, and `InputError` for a value that it does not take.
        """
        return check_options(self.options_type, options, self.name)

    def measured(self, layer: Layer, options: Any) -> Iterator[Measurement]:
        """What it measures in one layer, which an `InputError` names."""
        try:
            yield from self.measure(layer, options)
        except InputError as error:
            named = f"layer {layer.index}" in str(error)
            raise error if named else InputError(f"layer {layer.index}: {error}") from None

    def reads(self, options: Any) -> tuple[str, ...]:
        """The sites that a run with these options captures."""
        return self.sites if self.sites_of is None else self.sites_of(options)
