"""A bundle: what the page of the explorer draws, in one file. docs/bundle.md states the format.

A bundle is a safetensors file. Its metadata holds a JSON header under the key "workbench": the model, the inputs with
their tokens, the layers, the metrics of every head, the model's predictions, and the largest error of every
array that was rounded to float16.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workbench._version import __version__
from workbench.apps.explorer.cards import CIRCUITS, CardIndex
from workbench.apps.explorer.measures import NUMBERS, Series, options_of, series
from workbench.apps.explorer.network import NetworkCard
from workbench.apps.explorer.sentences import SENTENCES, Name
from workbench.core.errors import InputError, NothingToMeasure
from workbench.core.files import atomic_write, check_format
from workbench.core.threads import one_thread

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from workbench.analyses.tiles import Operands
    from workbench.apps.explorer.ablation import Ablation, Prediction
    from workbench.captures import Capture, LayerRecord, TokenInfo
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

SCHEMA = 5
POOLED = 512
"""Matrices of more queries or keys are pooled to this number."""
ANALYSES = {"attention-map": {"null_samples": 0}, "attention-patterns": {}}
"""The analyses of every head, with their options."""
BY_LAYER = {"token-similarity": "token_cosine", "coding-rate": "coding_rate"}
"""The analyses of the tokens after every block, with their metric."""
AGAIN = ("coding-rate", "membership", "logit-attribution")
"""Analyses that run the model again."""
LEFT_OUT = "not measured for the size of the model"
"""The start of a note on analyses of `AGAIN`."""
SHORT = {
    "pattern_previous": "previous token",
    "pattern_first": "first token",
    "attention_sink": "sink",
    "pattern_induction": "induction",
    "pattern_local": "local",
    "pattern_class": "class token",
    "pattern_uniform": "uniform",
    "pattern_diagonal": "itself",
}
"""The scores that rank heads by pattern, and their names in the page."""
SITES = ("q", "k", "v", "scale", "mask", "attn", "head_out", "proj_out", "resid_post")
_KEY = "workbench"
_NUMBERS = (*NUMBERS, "z")
_MOST = 2**20  # tokens, heads or pixels of a side that a header may speak of

_Count = Annotated[int, Field(ge=0, le=_MOST)]
_Side = Annotated[int, Field(ge=1, le=_MOST)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class ModelCard(_Part):
    """Identity of the model."""

    spec: str
    checkpoint: str | None
    family: str
    modality: str
    parameters: Annotated[int, Field(ge=0)]
    random_weights: bool


class LayerCard(_Part):
    """A layer: where it is, its heads, and why it has no attention matrix, if it has none."""

    index: _Count
    path: str
    heads: _Count
    without: str
    """Reason for a missing matrix over the tokens; empty where the matrix exists."""
    pooled: bool
    """Whether the matrix is that of bins of queries and of keys, at most `POOLED`."""
    queries: _Count = 0
    """Tokens of the queries: 0 for the input's own, i for its stream i - 1."""
    keys: _Count = 0
    """Tokens of the keys, in the same way."""


class PredictionCard(_Part):
    """The model's prediction for an input and the true outcome: an empty name if that is unknown."""

    of: Literal["class", "next token"]
    outcomes: list[list[str]]
    """By position the likeliest outcomes, most likely first; one position for a class."""
    actual: list[str]


class StreamCard(_Part):
    """Other tokens of an input: those of a decoder, or of a second tower."""

    labels: list[str]
    kinds: list[str]
    real: list[bool]
    grid: tuple[_Side, _Side] | None


class InputCard(_Part):
    """An input: its tokens, and the image that they are patches of."""

    id: str
    labels: list[str]
    kinds: list[str]
    real: list[bool]
    grid: tuple[_Side, _Side] | None
    """(rows, columns) of the patches of its image, also where that stands among words."""
    image: tuple[_Side, _Side] | None
    """(height, width) of the image."""
    images: Annotated[int, Field(ge=1, le=_MOST)] = 1
    """Number of images side by side in it, an empty column of cells apart."""
    prediction: PredictionCard | None = None
    whole: Annotated[int, Field(ge=0)] = 0
    """Number of tokens of a text that was cut; 0 for others."""
    first: Annotated[int, Field(ge=0)] = 0
    """Number of tokens of that text before the window that is here."""
    address: dict[str, str | int] = {}
    """Settings that choose the input again: inputs, n, seed and index; no inputs if they were a local path."""
    generated: _Count = 0
    """How many of its last tokens the model wrote itself."""
    streams: list[StreamCard] = []
    """Its other tokens, which some layers have."""
    checkpoint: str = ""
    """The model's checkpoint that saw it, where the file holds several."""

    def tokens(self, stream: int) -> InputCard | StreamCard:
        """Return the tokens that a layer's card names; raise `InputError` for a stream that is not here."""
        if stream > len(self.streams):
            raise InputError(
                f"a layer of this bundle has stream {stream} of {self.id}, which has {len(self.streams)}"
            )
        return self.streams[stream - 1] if stream else self


class MetricCard(_Part):
    """A number of every head, or of every layer."""

    name: str
    label: str
    short: str
    """Its name as a pattern; empty if it is none."""
    definition: str
    source: str
    unit: str
    low: float | None
    high: float | None
    null: str
    """Its null distribution; empty where it has none."""


class Header(_Part):
    """The metadata of a bundle."""

    format: Literal["attention-bundle"]
    bundle_schema: Literal[5]
    version: str
    model: ModelCard
    layers: Annotated[list[LayerCard], Field(min_length=1)]
    left_out: list[_Count]
    """Layers that are not in the file, for its size."""
    sites: list[str]
    inputs: Annotated[list[InputCard], Field(min_length=1)]
    metrics: list[MetricCard]
    by_layer: list[MetricCard]
    """Metrics with one number for every layer."""
    spectra: Annotated[list[MetricCard], Field(max_length=16)]
    """Metrics with a number for every rank."""
    ablations: dict[str, str]
    """How heads were switched off, in words, by the names of the arrays; empty where they were not."""
    without_ablations: str
    """Why they were not."""
    removal: str
    """The replacement of a removed patch or word, in words; empty where none was removed."""
    unmeasured: bool = False
    """Whether all but attention, operands and the prediction is still to be measured."""
    sentences: Annotated[dict[Name, str], Field(min_length=len(SENTENCES))]
    """The page's sentences about a view, with placeholders."""
    max_error: dict[str, Annotated[float, Field(ge=0)]]
    """Of every float16 array, the largest distance of a value from the one that was rounded."""
    notes: list[str]
    cards: CardIndex | None = None
    """Cards of the heads over many inputs, where they were made."""
    network: NetworkCard | None = None
    """A small network that the page runs itself, on an image that is painted there."""


@dataclass(frozen=True)
class Bundle:
    """A header and its arrays, described in docs/bundle.md.

    Raises `InputError` where the arrays are not those that the header speaks of.
    """

    header: Header
    arrays: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        expected = dict(_expected(self.header))
        for name, (_, shape) in expected.items():
            if name not in self.arrays:
                raise InputError(
                    f"this bundle lacks the array {name!r} of shape {_words(shape)}; write it again"
                )
        optional = {name: shape for name, shape in _optional(self.header) if name in self.arrays}
        for name, (kind, shape) in (expected | optional).items():
            array = self.arrays[name]
            fits = array.ndim == len(shape) and all(
                expected_size in (None, size) for expected_size, size in zip(shape, array.shape, strict=True)
            )
            if not fits or array.dtype != kind:
                raise InputError(
                    f"the array {name!r} of this bundle is {array.dtype} of shape {_words(array.shape)}; its header "
                    f"says {kind} of shape {_words(shape)}; write it again"
                )
        if strange := sorted(set(self.arrays) - set(expected) - set(optional)):
            raise InputError(f"this bundle holds the array {strange[0]!r}, which its header does not list")
        rounded = {name for name, array in self.arrays.items() if array.dtype == np.float16}
        if silent := sorted(rounded - set(self.header.max_error)):
            raise InputError(
                f"the header of this bundle states no largest error of the float16 array {silent[0]!r}"
            )

    def attention(self, layer: int, input: int = 0) -> np.ndarray:
        """Return attention (head, query, key) of a layer as it is in the file; of a pooled one the means."""
        card = next((card for card in self.header.layers if card.index == layer), None)
        if card is None or card.without:
            why = card.without if card else "is not in this bundle"
            raise InputError(f"layer {layer} {why}")
        return self.arrays[f"inputs.{input}.layers.{layer}." + ("attn_mean" if card.pooled else "attn")]

    def metric(self, name: str, number: str = "value", input: int = 0) -> np.ndarray:
        """Return value, null_mean, null_low, null_high or z of a metric, (layer, head); NaN where there is none."""
        return self.arrays[f"inputs.{input}.metrics.{name}.{number}"]

    def with_measured(self, analysis: str, frames: Sequence[pd.DataFrame]) -> Bundle:
        """Return the bundle with an analysis' numbers of heads and layers, and its spectra; a frame for each input.

        Raises `InputError` where it says nothing of heads or layers.
        """
        from workbench.apps.explorer import evidence

        measured = [[*series(analysis, frame)] for frame in frames]
        if not any(measured):
            raise InputError(f"{analysis} has no number of a head or a layer here")
        names = {card.name for card in (*self.header.metrics, *self.header.by_layer)}
        fresh = [[each for each in part if each.name not in names] for part in measured]
        cards, by_layer, arrays = _measured(fresh, self.header.layers)
        ranked = [evidence.ranked(analysis, frame) for frame in frames]
        spectra = [card for card in _spectrum_cards(ranked) if card not in self.header.spectra]
        header = self.header.model_copy(
            update={
                "metrics": [*self.header.metrics, *cards],
                "by_layer": [*self.header.by_layer, *by_layer],
                "spectra": [*self.header.spectra, *spectra],
            }
        )
        for index, of_input in enumerate(ranked):
            arrays |= {f"inputs.{index}.{name}": array for name, array in _by_rank(of_input).items()}
        return Bundle(header, self.arrays | arrays)

    def with_cards(self, cards: CardIndex, arrays: dict[str, np.ndarray]) -> Bundle:
        """Return the bundle with cards of its heads; those of layers that it does not hold are left out."""
        layers = {layer.index for layer in self.header.layers}
        held = cards.model_copy(update={"heads": [card for card in cards.heads if card.layer in layers]})
        fitting = {name: array for name, array in arrays.items() if int(name.split(".")[2]) in layers}
        return Bundle(self.header.model_copy(update={"cards": held}), self.arrays | fitting)

    def with_network(self, card: NetworkCard, weights: dict[str, np.ndarray]) -> Bundle:
        """Return the bundle with a network that the page runs itself."""
        return Bundle(self.header.model_copy(update={"network": card}), self.arrays | weights)

    def has_effect(self, mode: str, layer: int, head: int, input: int = 0) -> bool:
        """Return whether it holds the prediction without a head that was switched off in this mode."""
        divergence = self.arrays.get(f"inputs.{input}.ablations.{mode}.divergence")
        layers = [card.index for card in self.header.layers]
        return (
            divergence is not None
            and layer in layers
            and bool(np.isfinite(divergence[layers.index(layer), head]).any())
        )

    def with_effects(
        self, mode: str, words: str, effects: Ablation, layers: Sequence[int], input: int = 0
    ) -> Bundle:
        """Return the bundle with the predictions without more heads, of ``layers`` in the order of ``found``."""
        heads = max(layer.heads for layer in self.header.layers)
        layer_numbers = [card.index for card in self.header.layers]
        rows, columns = effects.divergence.isfinite().any(-1).nonzero(as_tuple=True)
        at = [layer_numbers.index(layers[row]) for row in rows.tolist()], columns.numpy()
        arrays, max_error = dict(self.arrays), dict(self.header.max_error)
        for number, values in (
            ("probability", effects.probability),
            ("actual", effects.actual_probability),
            ("divergence", effects.divergence),
        ):
            name = f"inputs.{input}.ablations.{mode}.{number}"
            kind = np.float32 if number == "divergence" else np.float16
            previous = arrays.get(name)
            grid = (
                np.full((len(layer_numbers), heads, *values.shape[2:]), np.nan, kind)
                if previous is None
                else previous.copy()
            )
            fresh = values[rows, columns].numpy()
            grid[at] = fresh
            arrays[name] = grid
            if kind is np.float16:
                error = np.abs(grid[at].astype(np.float64) - fresh)
                max_error[name] = max(max_error.get(name, 0.0), float(np.nanmax(error, initial=0.0)))
        header = self.header.model_copy(
            update={
                "ablations": {**self.header.ablations, mode: words},
                "without_ablations": "",
                "max_error": max_error,
            }
        )
        return Bundle(header, arrays)

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        from safetensors.numpy import save

        arrays = {
            name: np.ascontiguousarray(array) for name, array in self.arrays.items()
        }  # as they stand in memory
        return save(arrays, metadata={_KEY: self.header.model_dump_json()})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file, whole or not at all; raises what `workbench.core.files.atomic_write` raises."""
        return atomic_write(path, self.to_bytes())


def _words(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"


def _expected(header: Header) -> Iterator[tuple[str, tuple[str, tuple[int | None, ...]]]]:
    """Yield type and shape of every array that a bundle with this header must hold; None is any length."""
    most = max(layer.heads for layer in header.layers)
    for name, shape in header.network.weights.items() if header.network else ():
        yield f"network.{name}", ("float32", shape)
    for index, card in enumerate(header.inputs):
        for tokens in (card, *card.streams):
            count = len(tokens.labels)
            if not len(tokens.kinds) == len(tokens.real) == count or count == 0:
                raise InputError(
                    f"input {index} of this bundle has {count} labels, {len(tokens.kinds)} kinds and "
                    f"{len(tokens.real)} marks of real tokens; every token has one of each"
                )
            patches = tokens.kinds.count("patch")
            cells = tokens.grid[0] * tokens.grid[1] if tokens.grid else patches
            if cells < patches or (cells > patches and tokens is not card):
                raise InputError(
                    f"input {index} of this bundle has {patches} patches, which do not fill a grid of {tokens.grid}"
                )
            if cells > patches:
                yield f"inputs.{index}.cells", ("float32", (count,))
        if card.image:
            yield f"inputs.{index}.image", ("uint8", (*card.image, 3))
        for layer in header.layers:
            if not layer.without:
                names = ("attn_mean", "attn_max") if layer.pooled else ("attn",)
                side = None if layer.pooled else len(card.tokens(layer.keys).labels)
                for name in names:
                    asking = (
                        len(card.tokens(layer.queries).labels) if layer.queries else None
                    )  # one in class attention
                    queries = side if layer.pooled else asking
                    yield (
                        f"inputs.{index}.layers.{layer.index}.{name}",
                        ("float16", (layer.heads, queries, side)),
                    )
        for metric in header.metrics:
            for number in _NUMBERS if metric.null else _NUMBERS[:1]:
                yield (
                    f"inputs.{index}.metrics.{metric.name}.{number}",
                    ("float64", (len(header.layers), most)),
                )
        for metric in header.by_layer:
            for number in _NUMBERS if metric.null else _NUMBERS[:1]:
                yield f"inputs.{index}.by_layer.{metric.name}.{number}", ("float64", (len(header.layers),))


def _optional(header: Header) -> Iterator[tuple[str, tuple[str, tuple[int | None, ...]]]]:
    """Yield type and shape of the arrays that a bundle may hold."""
    most = max(layer.heads for layer in header.layers)
    for index, card in enumerate(header.inputs):
        count = len(card.labels)
        yield f"inputs.{index}.cells", ("float32", (count,))
        for layer in header.layers:
            start = f"inputs.{index}.layers.{layer.index}"
            yield from ((f"{start}.norms.{site}", ("float32", (None, None))) for site in ("q", "k", "v"))
            yield f"{start}.norms.written", ("float32", (layer.heads, None))
            yield f"{start}.q", ("float16", (layer.heads, None, None))
            yield f"{start}.k", ("float16", (None, count, None))
            yield f"{start}.scale", ("float64", (layer.heads,))
            yield f"{start}.membership", ("float32", (None, count))
            yield f"{start}.plane.q", ("float32", (layer.heads, None, 2))
            yield f"{start}.plane.k", ("float32", (layer.heads, count, 2))
            yield f"{start}.plane.share", ("float32", (layer.heads, 2))
            for metric in header.spectra:
                for number in NUMBERS:
                    yield f"{start}.spectra.{metric.name}.{number}", ("float32", (None, None))
        if card.prediction is not None:
            outcomes = card.prediction.outcomes
            positions, kept = len(outcomes), len(outcomes[0]) if outcomes else 0
            for layer in header.layers:
                start = f"inputs.{index}.layers.{layer.index}.route"
                yield f"{start}.links", ("float32", (positions, None, 3))
                yield f"{start}.total", ("float32", (positions,))
            yield f"inputs.{index}.prediction.probability", ("float32", (positions, kept))
            yield f"inputs.{index}.prediction.actual", ("float32", (positions,))
            every = (len(header.layers), most, positions)
            for mode in header.ablations:
                start = f"inputs.{index}.ablations.{mode}"
                yield f"{start}.probability", ("float16", (*every, kept))
                yield f"{start}.actual", ("float16", every)
                yield f"{start}.divergence", ("float32", every)
            if header.removal:
                start = f"inputs.{index}.removal"
                yield f"{start}.probability", ("float16", (count, positions, kept))
                yield f"{start}.actual", ("float16", (count, positions))
                yield f"{start}.divergence", ("float32", (count, positions))
    for layer in header.layers if header.cards else ():
        start, points = f"cards.layers.{layer.index}", len(header.cards.points) if header.cards else 0
        yield from ((f"{start}.plane.{side}", ("float32", (layer.heads, points, 2))) for side in ("q", "k"))
        yield f"{start}.plane.share", ("float32", (layer.heads, 2))
        for circuit in CIRCUITS:
            for number in NUMBERS:
                yield f"{start}.circuits.{circuit}.{number}", ("float32", (None, None))


def of_checkpoints(bundles: Mapping[str, Bundle]) -> Bundle:
    """Join bundles of one model's checkpoints, by their names: each input stands once for each of them.

    Raises `InputError` where their layers differ.
    """
    cards: list[InputCard] = []
    arrays: dict[str, np.ndarray] = {}
    max_error: dict[str, float] = {}
    first = next(iter(bundles.values())).header
    for name, bundle in bundles.items():
        if bundle.header.layers != first.layers or bundle.header.metrics != first.metrics:
            raise InputError(
                f"the layers or metrics of {name} are not those of the other checkpoints; save it alone"
            )

        def renamed(key: str, start: int = len(cards)) -> str:
            _, index, rest = key.split(".", 2)
            if not key.startswith("inputs."):
                return key
            return f"inputs.{start + int(index)}.{rest}"

        arrays |= {renamed(key): array for key, array in bundle.arrays.items()}
        max_error |= {renamed(key): error for key, error in bundle.header.max_error.items()}
        cards += [card.model_copy(update={"checkpoint": name}) for card in bundle.header.inputs]
    return Bundle(first.model_copy(update={"inputs": cards, "max_error": max_error}), arrays)


# ---------------------------------------------------------------------------------------------------------- read


def read_bundle(source: str | os.PathLike[str] | bytes) -> Bundle:
    """Read and check a bundle from its file or its bytes.

    Raises `InputError` for a file that is no safetensors file or is cut short, has no header of a bundle, has
    another schema, or whose arrays are not those of its header.
    """
    name = "the bundle" if isinstance(source, bytes) else str(source)
    try:
        content = source if isinstance(source, bytes) else Path(source).expanduser().read_bytes()
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror or error})") from error
    fields = _header_fields(content, name)
    schema = fields.get("bundle_schema")
    if fields.get("format") != "attention-bundle":
        raise InputError(
            f"{name}: a safetensors file, but no bundle of the explorer; write one with save_bundle"
        )
    check_format(name, "bundle schema", schema, SCHEMA)
    try:
        header = Header.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{name}: its header does not hold ({where}: {first['msg']}); write it again"
        ) from error
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{name}: cut short or damaged ({error}); write it again") from error
    return Bundle(header, arrays)


def _header_fields(content: bytes, name: str) -> dict[str, Any]:
    """Return the JSON in the metadata of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > len(content) - 8:
        raise InputError(
            f"{name}: no safetensors file, or one that is cut short: {len(content)} bytes, and its header "
            f"would take {length} bytes"
        )
    try:
        outer = json.loads(content[8 : 8 + length])
        fields = json.loads(outer["__metadata__"][_KEY])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{name}: no bundle of the explorer: its header cannot be read") from error
    if not isinstance(fields, dict):
        raise InputError(f"{name}: no bundle of the explorer: its header is a {type(fields).__name__}")
    return fields


# --------------------------------------------------------------------------------------------------------- write


def make_bundle(
    model: LoadedModel,
    inputs: Inputs | Sequence[Inputs],
    layers: Sequence[int] | None = None,
    left_out: Sequence[int] = (),
    seed: int = 0,
    ablations: bool | None = None,
    with_operands: bool = True,
    analyses: Sequence[str] = (),
    progress: Callable[[float], object] | None = None,
    steps: Sequence[Capture | None] = (),
    measured: bool = True,
    bins: int | None = None,
    most_again: float | None = None,
) -> Bundle:
    """Run a model once on every input and keep what the page draws.

    Texts that are given one by one are not padded to the longest. ``layers`` chooses some (None: all);
    ``left_out`` names those that are missing for the size of the file. The metrics and spectra are those of
    `workbench.analyze` on the same capture: nothing is computed twice. ``ablations`` runs the model again without each
    head in turn (None: where that is a matter of seconds); ``with_operands`` keeps q and k of every token, too.
    ``analyses`` are further registered ones, whose numbers of heads and layers are kept. ``progress`` gets the share
    that is done, and may end the work by raising. ``steps`` are those of inputs that the model has continued, as
    `workbench.apps.explorer.continuation.continued` gives both. Without ``measured`` only attention, q and k and
    the prediction are kept, which a person sees first. Matrices of more than ``bins`` tokens
    (None: `POOLED`) are pooled to that number. Analyses of `AGAIN`, which run the model again, are left out where
    parameters × tokens exceed ``most_again``, except those in ``analyses``.
    """
    from workbench.apps.explorer import evidence
    from workbench.apps.explorer.continuation import put_steps
    from workbench.apps.explorer.route import route
    from workbench.captures import capture
    from workbench.data.batches import Inputs
    from workbench.runs.analyze import analyze

    parts: list[_Input] = []
    ones = (
        [inputs[index : index + 1] for index in range(len(inputs))]
        if isinstance(inputs, Inputs)
        else [*inputs]
    )
    report = progress or (lambda share: None)
    size = sum(parameter.numel() for parameter in model.module.parameters())
    for index, sample in enumerate(ones):
        report(index / len(ones))
        seen = capture(
            model,
            sample,
            layers=None if layers is None else list(layers),
            sites=SITES,
            map_limit=map_limit(sample),
        )
        continued = steps[index] if steps else None
        if continued is not None:
            put_steps(seen, continued)
        part = _input(model, seen, sample, with_operands, bins)
        if continued is not None and continued.generated is not None:
            part.card = part.card.model_copy(update={"generated": continued.generated.steps})
        large = most_again is not None and size * len(part.card.labels) > most_again
        again = {name for name in AGAIN if not large or name in analyses}
        if len(again) < len(AGAIN):
            part.notes.append(f"{LEFT_OUT}: {', '.join(name for name in AGAIN if name not in again)}")
        short = len(part.card.labels) <= evidence.MOST_TOKENS
        decomposed = sum(card.heads for card in part.layers) * len(part.card.labels) ** 3
        # several threads spend more time on waiting for each other than on small matrices
        with one_thread() if short else nullcontext():
            part.series += _through_depth(model, sample, seen, layers, seed, again) if measured else []
            for name, options in ANALYSES.items() if measured else ():
                frame = _frame(analyze, name, qkv=seen, seed=seed, **options)
                part.series += [] if frame is None else _plain(name, frame)
            report((index + 0.3) / len(ones))
            if measured and short:
                if decomposed <= evidence.MOST_WORK:
                    part.spectra = evidence.spectra(partial(_frame, analyze, qkv=seen, seed=seed))
                if "membership" in again:
                    _belong(part, model, sample, layers)
        report((index + 0.6) / len(ones))
        _predict(part, model, sample, seen, ablations if measured else False)
        if measured and short and part.card.prediction is not None and "logit-attribution" in again:
            part.arrays |= route(model, sample, seen, part.card.prediction.of)
        parts.append(part)
    bundle = _join(parts, model, left_out)
    if not measured:
        return Bundle(bundle.header.model_copy(update={"unmeasured": True}), bundle.arrays)
    for number, name in enumerate(analyses):
        report(number / len(analyses))
        chosen = None if layers is None else list(layers)
        measure = partial(analyze, name, model=model, seed=seed, layers=chosen, **options_of(name))
        bundle = bundle.with_measured(name, [measure(inputs=sample) for sample in ones])
    return bundle


def map_limit(sample: Inputs) -> int | None:
    """Return the limit for `workbench.capture`: pooled matrices are not formed where queries and keys give them."""
    return 0 if sample.tokens.count > POOLED else None


def _plain(analysis: str, frame: pd.DataFrame) -> list[Series]:
    """Return the series of an analysis that is always measured, named by their metrics only."""
    return [replace(each, name=each.metric.name) for each in series(analysis, frame) if not each.words]


def _through_depth(
    model: LoadedModel,
    sample: Inputs,
    seen: Capture,
    layers: Sequence[int] | None,
    seed: int,
    again: Container[str],
) -> list[Series]:
    """Measure the tokens layer by layer; return nothing for models with unknown blocks."""
    from workbench.runs.analyze import analyze

    chosen = None if layers is None else list(layers)
    measured: list[Series] = []
    runs: list[dict[str, Any]] = [{"qkv": seen}, {"model": model, "inputs": sample, "layers": chosen}]
    for analysis, metric in BY_LAYER.items():
        passes = runs if analysis in again or analysis not in AGAIN else runs[:1]
        for run in passes:  # the capture does, or the analysis reads weights and other sites: another pass
            try:
                frame = analyze(analysis, seed=seed, **run)
                break
            except InputError:
                continue
        else:
            continue
        after = frame["candidate"].isna() | (frame["candidate"] == "resid_post")
        rows = frame[(frame["metric"] == metric) & after & frame["standardize"].isna() & frame["axis"].isna()]
        measured += _plain(analysis, rows)
    return measured


def _frame(analyze: Callable[..., pd.DataFrame], name: str, /, **settings: Any) -> pd.DataFrame | None:
    """Return the frame of an analysis; None where it has nothing to measure in this model."""
    try:
        return analyze(name, **settings)
    except NothingToMeasure:
        return None


@dataclass
class _Input:
    """One input on its way into a bundle."""

    card: InputCard
    layers: list[LayerCard]
    arrays: dict[str, np.ndarray]
    max_error: dict[str, float]
    sites: set[str]
    notes: list[str]
    series: list[Series] = field(default_factory=list)
    spectra: dict[str, pd.DataFrame] = field(default_factory=dict)
    without_ablations: str = ""
    removal: str = ""

    def stream(self, tokens: TokenInfo) -> int:
        """Return the number of a stream of tokens, which joins the card where it is new; 0 for the input's own."""
        if tokens.labels[0] == self.card.labels and tokens.kinds[0] == self.card.kinds:
            return 0
        card = StreamCard(
            labels=tokens.labels[0],
            kinds=tokens.kinds[0],
            real=tokens.mask[0].tolist(),
            grid=_patch_grid(tokens) if self.card.image else None,
        )
        if card not in self.card.streams:
            self.card.streams.append(card)
        return self.card.streams.index(card) + 1

    def round(self, name: str, values: np.ndarray) -> None:
        """Keep an array as float16, with its largest error."""
        rounded = values.astype(np.float16)
        self.arrays[name] = rounded
        error = np.abs(rounded.astype(np.float64) - values)
        self.max_error[name] = float(np.nanmax(error, initial=0.0))


def _patch_grid(tokens: TokenInfo) -> tuple[int, int] | None:
    """Return (rows, columns) of the patches of an image, or of the only image among words."""
    grids = tokens.image_grids[0] if tokens.image_grids else []
    only = grids[0] if len(grids) == 1 else None
    fits = only is not None and only[0] * only[1] == tokens.kinds[0].count("patch")
    return only if tokens.grid is None and fits else tokens.grid


def _input(
    model: LoadedModel, seen: Capture, sample: Inputs, with_operands: bool, bins: int | None = None
) -> _Input:
    from workbench.apps.explorer.tiling import strip_of, tiling_of

    tokens = seen.tokens
    assert tokens is not None  # inputs always come with their tokens
    image = sample.images[0] if sample.images else None
    strip = strip_of(sample, tokens)
    tiling = strip or (None if any(sample.others) else tiling_of(sample, tokens))
    image, grid = (image, _patch_grid(tokens)) if tiling is None else tiling[:2]
    card = InputCard(
        id=sample.ids[0],
        labels=tokens.labels[0],
        kinds=tokens.kinds[0],
        real=tokens.mask[0].tolist(),
        grid=grid if image is not None else None,
        image=None if image is None else (int(image.shape[0]), int(image.shape[1])),
        images=1 if strip is None else 1 + len(sample.others[0]),
    )
    part = _Input(card, [], {}, {}, set(), list(seen.notes))
    if tiling is not None:
        part.arrays["cells"] = tiling.cells
    if image is not None:
        part.arrays["image"] = np.ascontiguousarray(image, dtype=np.uint8)
    for record in seen:
        part.layers.append(_layer(record, tokens, part, with_operands, bins))
        card = part.layers[-1]
        if not (card.without or card.pooled) and (norms := _written(record, model)) is not None:
            part.arrays[f"layers.{record.index}.norms.written"] = norms
    return part


def _predict(part: _Input, model: LoadedModel, sample: Inputs, seen: Capture, wanted: bool | None) -> None:
    """Put the prediction, and those without each head, into ``part``; or the reason why there are none."""
    from workbench.apps.explorer import ablation

    prediction = ablation.predict(model, sample, seen)
    if prediction is None:
        part.without_ablations = (
            f"{model.spec} predicts no class, and no next token by attention that is seen to be causal"
        )
        return
    names = prediction.names
    part.card = part.card.model_copy(
        update={
            "prediction": PredictionCard(
                of=prediction.of,
                outcomes=[[names[outcome] for outcome in row] for row in prediction.outcomes.tolist()],
                actual=[names.get(outcome, "") for outcome in prediction.actual.tolist()],
            )
        }
    )
    part.arrays["prediction.probability"] = prediction.probability.numpy().astype(np.float32)
    part.arrays["prediction.actual"] = prediction.actual_probability.numpy().astype(np.float32)
    _remove(part, model, sample, seen, prediction, wanted)
    if wanted is False:
        part.without_ablations = "they were not asked for"
        return
    if wanted is None and (work := ablation.work(model, seen)) > ablation.MOST_WORK:
        part.without_ablations = (
            f"without each head in turn this model takes some {work:.0e} multiplications; ask for them with "
            "ablations=True"
        )
        return
    try:
        effects = ablation.ablate(model, sample, seen, prediction)
    except InputError as error:
        part.without_ablations = str(error)
        return
    for mode, each in effects.items():
        part.round(f"ablations.{mode}.probability", each.probability.numpy())
        part.round(f"ablations.{mode}.actual", each.actual_probability.numpy())
        part.arrays[f"ablations.{mode}.divergence"] = each.divergence.numpy().astype(np.float32)


def _belong(part: _Input, model: LoadedModel, sample: Inputs, layers: Sequence[int] | None) -> None:
    """Put memberships of every token in the heads of each layer that has them into ``part``."""
    from workbench.runs.analyze import analyze

    chosen = None if layers is None else list(layers)
    try:
        rows = analyze("membership", model=model, inputs=sample, per="token", layers=chosen)
    except InputError:  # a model whose value projections are not known has none
        return
    real = [token for token, is_real in enumerate(part.card.real) if is_real]
    patches = [token for token, kind in enumerate(part.card.kinds) if kind == "patch"]
    for layer in rows["layer"].unique():
        layer_rows = rows[rows["layer"] == layer]
        numbers = layer_rows["token"].to_numpy(int)
        if set(numbers) != set(real):
            if set(numbers) != set(range(len(patches))):  # tokens that are not the input's
                continue
            numbers = np.array(patches)[numbers]  # the patches, before the class token joins them
        membership = np.full((int(layer_rows["head"].max()) + 1, len(part.card.labels)), np.nan, np.float32)
        membership[layer_rows["head"].to_numpy(int), numbers] = layer_rows["value"].to_numpy(float)
        part.arrays[f"layers.{int(layer)}.membership"] = membership


def _remove(
    part: _Input,
    model: LoadedModel,
    sample: Inputs,
    seen: Capture,
    prediction: Prediction,
    wanted: bool | None,
) -> None:
    """Put the predictions without each patch or word in turn into ``part``, where they can be had."""
    from workbench.apps.explorer import ablation, removal

    if wanted is False or len(part.card.labels) > POOLED:
        return
    if wanted is None and removal.work(model, seen) > ablation.MOST_WORK:
        return
    try:
        effects = removal.remove_each(model, sample, seen, prediction)
    except InputError:  # of what is no single image or text: the page does not offer it
        return
    part.removal = effects.how
    part.round("removal.probability", effects.probability.numpy())
    part.round("removal.actual", effects.actual_probability.numpy())
    part.arrays["removal.divergence"] = effects.divergence.numpy().astype(np.float32)


def _layer(
    record: LayerRecord, tokens: TokenInfo, part: _Input, with_operands: bool, bins: int | None = None
) -> LayerCard:
    """Return a layer's card, and put its arrays and their errors into ``part``."""
    from workbench.apps.explorer.evidence import operands

    count = len(tokens.labels[0])
    prefix = f"layers.{record.index}"
    without = why_without(record, count)
    queries = keys = 0
    if (without or tokens.streams) and (streams := _streams(record, tokens)):
        without, (queries, keys) = "", map(part.stream, streams)
        with_operands = with_operands and not (queries or keys)
    by_head = record.attn if record.attn is not None else record.head_out
    heads = 0 if record.mixer or by_head is None else int(by_head.shape[1])
    bins = bins or POOLED
    pooled = not without and count > bins and not (queries or keys) and map_size(record) == (count, count)
    if not without:
        kept = _matrices(record, tokens, bins if pooled else 0)
        for name, values in kept.items():
            part.round(f"{prefix}.{name}", values)
        part.sites.add("attn")
        for site in ("q", "k", "v"):
            operand: Tensor | None = getattr(record, site)
            if operand is not None and operand.ndim == 4:
                lengths = operand[0].detach().double().norm(dim=-1).cpu().numpy()
                part.arrays[f"{prefix}.norms.{site}"] = lengths.astype(np.float32)
        for name, values in (
            operands(record, tokens.mask[0]) if with_operands and not pooled else {}
        ).items():
            if name in ("q", "k"):
                part.round(f"{prefix}.{name}", values)
            else:
                part.arrays[f"{prefix}.{name}"] = values
    return LayerCard(
        index=record.index, path=record.path, heads=heads, without=without, pooled=pooled,
        queries=queries, keys=keys,
    )  # fmt: skip


def _written(record: LayerRecord, model: LoadedModel) -> np.ndarray | None:
    """Return ‖v W_O‖ by head and key; None where no linear layer reads attention times values."""
    from workbench.analyses.layer import Layer, NotApplicable
    from workbench.analyses.value_output import key_norms

    try:
        norms = key_norms(Layer(record, ["0"], None, 0, model=model.module))
    except (InputError, NotApplicable):
        return None
    return norms[0].cpu().numpy().astype(np.float32)


def _streams(record: LayerRecord, tokens: TokenInfo) -> tuple[TokenInfo, TokenInfo] | None:
    """Return the tokens of a layer's queries and keys where they are not the input's; None if they are unknown."""
    sizes = map_size(record)
    if (
        record.mixer
        or record.origin is not None
        or record.kind != "token"
        or record.attn is None
        or not sizes
    ):
        return None
    queries = tokens.of(record)
    keys = queries.keys or queries
    sizes_match = (len(queries.labels[0]), len(keys.labels[0])) == sizes
    return (queries, keys) if sizes_match and max(sizes) <= POOLED else None


def _matrices(record: LayerRecord, tokens: TokenInfo, bins: int) -> dict[str, np.ndarray]:
    """Return attention (head, query, key), or coarse maps of it, computed from queries and keys if captured."""
    if record.attn is None:
        from workbench.analyses.reductions import Pooled

        coarse = operands_of(record, tokens).reduced(Pooled(bins))["pooled"]
        return {
            "attn_mean": coarse.mean[0].cpu().numpy(),
            "attn_max": coarse.maximum[0].double().cpu().numpy(),
        }
    attn = record.attn[0].detach().double().cpu().numpy()
    return _pooled(attn, bins) if bins else {"attn": attn}


def operands_of(record: LayerRecord, tokens: TokenInfo, head: int | None = None) -> Operands:
    """Return the operands of one input's attention for tiles, of all heads or a single head."""
    from workbench.analyses.layer import Layer
    from workbench.analyses.tiles import layer_operands

    return layer_operands(Layer(record, ["0"], tokens, 0, None if head is None else [head]))


def why_without(record: LayerRecord, count: int) -> str:
    """Return why a layer has no attention matrix over the input's ``count`` tokens; empty if it has the matrix."""
    if record.mixer:
        return f"is a {record.mixer}: it mixes tokens without attention"
    if record.origin is not None:
        return "attends within windows: there is no matrix over all tokens"
    if record.kind == "channel":
        return "attends from channel to channel, not from token to token"
    sizes = map_size(record)
    if record.kind != "token" or sizes is None:
        return "mixes tokens without a matrix from token to token"
    queries, keys = sizes
    if record.source == "cross":
        return f"attends from {queries} tokens to {keys} others (cross attention)"
    if keys != count or queries not in (1, keys) or (keys > POOLED and queries == 1):
        return f"attends from {queries} tokens to {keys}, which are not the {count} of the input"
    return ""


def map_size(record: LayerRecord) -> tuple[int, int] | None:
    """Return the number of queries and keys of attention, formed or not; None where it has none."""
    if record.attn is not None:
        queries, keys = record.attn.shape[-2:]
        return queries, keys
    if record.q is None or record.k is None:
        return None
    return record.q.shape[2], record.k.shape[2]


def _pooled(attn: np.ndarray, bins: int | None = None) -> dict[str, np.ndarray]:
    """Return means and maxima over bins of queries and of keys; token i is in bin ⌊i · bins / N⌋."""
    bins = bins or POOLED
    edges, _ = _bins(attn.shape[-1], bins)
    most = np.maximum.reduceat(np.maximum.reduceat(attn, edges, -1), edges, -2)
    return {"attn_mean": bin_means(attn, bins), "attn_max": most}


def bin_means(attn: np.ndarray, bins: int | None = None) -> np.ndarray:
    """Return means of a square (…, query, key) over at most ``bins`` bins a side; token i is in bin ⌊i · bins / N⌋."""
    count = attn.shape[-1]
    edges, sizes = _bins(count, min(count, bins or POOLED))
    sums = np.add.reduceat(np.add.reduceat(attn, edges, -1), edges, -2)
    return sums / (sizes[:, None] * sizes)


def coarse_part(operands: Operands, top: int, left: int, count: int) -> np.ndarray:
    """Return the `bin_means` of ``count`` queries from ``top`` and keys from ``left`` of a head's attention.

    Without forming more than a tile.
    """
    import torch

    from workbench.analyses.reductions import Pooled

    rows = operands.of_queries(torch.arange(top, top + count, device=operands.q.device))
    coarse = rows.reduced(Pooled(POOLED, range(left, left + count)))["pooled"]
    return coarse.mean[0, 0].cpu().numpy()


def _bins(count: int, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first token of every bin, and its number of tokens."""
    from workbench.analyses.reductions import bin_edges

    edges = np.array(bin_edges(count, bins))
    return edges[:-1], np.diff(edges)


def _join(parts: list[_Input], model: LoadedModel, left_out: Sequence[int]) -> Bundle:
    from workbench.apps.explorer.ablation import MODES

    layers = parts[0].layers
    for part in parts[1:]:
        if part.layers != layers:
            raise InputError(
                f"the layers of {part.card.id} are not those of {parts[0].card.id} (other heads, or pooled where the "
                "other is not); write a bundle for each"
            )
    for part in parts:
        part.arrays |= _by_rank(part.spectra)
    cards, by_layer, arrays = _measured([part.series for part in parts], layers)
    max_error = {}
    for index, part in enumerate(parts):
        arrays |= {f"inputs.{index}.{name}": array for name, array in part.arrays.items()}
        max_error |= {f"inputs.{index}.{name}": error for name, error in part.max_error.items()}
    header = Header(
        format="attention-bundle",
        bundle_schema=SCHEMA,
        version=__version__,
        model=ModelCard(
            spec=model.spec,
            checkpoint=None if model.checkpoint is None else str(model.checkpoint),
            family=model.family,
            modality=model.modality,
            parameters=sum(parameter.numel() for parameter in model.module.parameters()),
            random_weights=model.has_random_weights,
        ),
        layers=layers,
        left_out=list(left_out),
        sites=sorted(set().union(*(part.sites for part in parts))),
        inputs=[part.card for part in parts],
        metrics=cards,
        by_layer=by_layer,
        spectra=_spectrum_cards([part.spectra for part in parts]),
        ablations=MODES
        if any(name.startswith("ablations.") for part in parts for name in part.arrays)
        else {},
        removal=next((part.removal for part in parts if part.removal), ""),
        without_ablations=next((part.without_ablations for part in parts if part.without_ablations), ""),
        sentences=SENTENCES,
        max_error=max_error,
        notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
    )
    return Bundle(header, arrays)


def _measured(
    parts: Sequence[Sequence[Series]], layers: Sequence[LayerCard]
) -> tuple[list[MetricCard], list[MetricCard], dict[str, np.ndarray]]:
    """Return cards of the numbers of heads and of layers, and the arrays of every input."""
    names = dict.fromkeys(each.name for part in parts for each in part)
    of_heads: list[MetricCard] = []
    by_layer: list[MetricCard] = []
    arrays: dict[str, np.ndarray] = {}
    for name in names:
        of_parts = [next((each for each in part if each.name == name), None) for part in parts]
        cards = [_metric_card(each) for each in of_parts if each is not None]
        card = next((card for card in cards if card.null), cards[0])
        heads = next(each.of_heads for each in of_parts if each is not None)
        (of_heads if heads else by_layer).append(card)
        for index, each in enumerate(of_parts):
            for number in _NUMBERS if card.null else _NUMBERS[:1]:
                grid = _grid(each, layers, number) if each or heads else np.full((len(layers), 1), np.nan)
                at = f"inputs.{index}.{'metrics' if heads else 'by_layer'}.{name}.{number}"
                arrays[at] = grid if heads else grid[:, 0].copy()
    return of_heads, by_layer, arrays


def _spectrum_cards(ranked: Sequence[Mapping[str, pd.DataFrame]]) -> list[MetricCard]:
    """Return the cards of the metrics that have a number for every rank."""
    from workbench.frames.metric import METRICS

    spectra = {name: rows for of_input in ranked for name, rows in of_input.items()}
    return [_metric_card(Series(name, METRICS[name], "", True, rows)) for name, rows in spectra.items()]


def _by_rank(ranked: Mapping[str, pd.DataFrame]) -> dict[str, np.ndarray]:
    """Return the arrays of an input's spectra."""
    from workbench.apps.explorer.evidence import by_rank

    return {
        f"layers.{layer}.spectra.{name}.{number}": values
        for name, rows in ranked.items()
        for layer, numbers in by_rank(rows)
        for number, values in numbers.items()
    }


def _metric_card(measured: Series) -> MetricCard:
    metric = measured.metric
    texts = {column: measured.rows[column].dropna() for column in ("unit", "null")}
    return MetricCard(
        name=measured.name,
        label=metric.label + (f" ({measured.words})" if measured.words else ""),
        short=SHORT.get(measured.name, ""),
        definition=metric.definition,
        source=metric.source,
        unit=str(texts["unit"].iloc[0]) if len(texts["unit"]) else metric.unit,
        null=str(texts["null"].iloc[0]) if len(texts["null"]) else "",
        low=metric.low if np.isfinite(metric.low) else None,
        high=metric.high if np.isfinite(metric.high) else None,
    )


def _grid(measured: Series | None, layers: Sequence[LayerCard], number: str) -> np.ndarray:
    """Return the number of every head as (layer, head), NaN where there is none; of a layer in the first column."""
    most = max(layer.heads for layer in layers)
    grid = np.full((len(layers), most if measured is None or measured.of_heads else 1), np.nan)
    if measured is None:
        return grid
    layer_rows = {layer.index: row for row, layer in enumerate(layers)}
    rows = measured.rows
    values = rows[number].to_numpy(float, na_value=np.nan)
    for layer, head, value in zip(rows["layer"], rows["head"], values, strict=True):
        if int(layer) in layer_rows:
            grid[layer_rows[int(layer)], int(head) if measured.of_heads else 0] = value
    return grid
