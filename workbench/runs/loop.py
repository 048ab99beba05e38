"""The one loop: every layer of every batch is measured as soon as the model has run it, and accumulated.

It runs over a model and its inputs batch by batch, a file of q, k, v cut into batches, or only weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import pandas as pd
import torch
from annotated_types import Ge
from torch import Tensor, nn

from workbench.analyses.layer import Layer, NotApplicable, Passes, visible_keys, with_float64
from workbench.analyses.registry import ANALYSES, Analysis
from workbench.captures import (
    Capture,
    LayerRecord,
    TokenInfo,
    attention_modules,
    capture,
    intervene,
    read_qkv,
    token_mixers,
)
from workbench.captures.capturing import batch_on_device, call_model, is_plain
from workbench.captures.generation import capture_generation, steps_of
from workbench.captures.joining import cut_layer, inputs_in, join_captures
from workbench.captures.layout import module_of
from workbench.core.errors import InputError
from workbench.core.files import sha256_bytes
from workbench.core.options import Numbers, are_inputs, checked, parse_numbers
from workbench.data.classes import class_indices, outcome_index
from workbench.frames.measurement import Accumulator, Counts, Measurement
from workbench.frames.results import STEP
from workbench.runs import settings as setting
from workbench.runs.reused_projections import Projections
from workbench.runs.settings import RunSettings
from workbench.runs.unfinished import LayerResult, Unfinished

Progress = Callable[[float], None]
"""A function of the fraction that is done; it may raise to stop the work."""
OnLayer = Callable[[LayerRecord, TokenInfo | None, LayerRecord | None], None]
"""A function of a layer's capture, the tokens, and the capture of the perturbed inputs where there are some."""


@dataclass
class Batch:
    """Names of some inputs, and their images where there are any."""

    ids: Sequence[str]
    run: Callable[[OnLayer, bool], None]
    """Run the model, and pass every layer on as soon as it is complete; it is freed unless the function keeps it.
    With True all layers are held until the model has run."""
    images: Sequence[np.ndarray] | None = None
    step: int | None = None
    """Number of the generated token, where a model generated."""
    query: int | None = None
    """Position in the text of the query that chose the token."""
    passes: Callable[[], Passes] | None = None
    """Make further passes of the model over these inputs."""


@dataclass
class Source:
    """Batches in the order of the inputs, with model and inputs; ``notes`` grow while batches run."""

    model: dict[str, Any]
    inputs: dict[str, Any]
    size: int
    batches: Callable[[], Iterator[Batch]]
    notes: list[str] = field(default_factory=list)
    module: nn.Module | None = None
    """The model that runs, for analyses of its weights; None for a file."""
    depth: int = 1
    """Expected number of layers of a batch."""
    content: Any = None
    """The model's inputs, or the file's capture, to be identified by content."""


def analysis_source(analysis: Analysis, options: Any, settings: RunSettings) -> Source:
    """Return the model over its inputs with all sites that the analysis reads."""
    perturb = analysis.perturb
    sites = (*analysis.reads(options), *analysis.also)
    return model_source(
        settings,
        sites,
        keep_nonfinite=analysis.counts_nonfinite,
        # without the site attn no map is formed, and a causal mask need not be written out either
        map_limit=getattr(options, "map_limit", None) if "attn" in sites else 0,
        perturb=None if perturb is None else lambda batch: perturb(batch, options, settings.seed),
    )


def accumulate(
    analysis: Analysis,
    options: Any,
    source: Source,
    settings: RunSettings,
    progress: Progress | None = None,
    unfinished: Unfinished | None = None,
) -> Accumulator:
    """Measure every layer of every batch. ``options`` are what `find_analysis` gives.

    A layer is freed before the model runs the next, unless the analysis compares layers. ``progress`` is called after
    every layer of every batch, and with 1.0 at the end. ``unfinished`` holds the layers that an interrupted run has
    measured.
    """
    # analyses with the option say what they measure head by head; the others have no means to take
    aggregate = not getattr(options, "per_head", True)
    into = Accumulator(aggregate, getattr(options, "per_input", True), getattr(options, "single", False))
    measured: list[tuple[Layer, Measurement]] = []
    """Measurements of this batch, for an analysis that compares its layers."""

    read = analysis.reads(options)

    def measurements_of(layer: Layer) -> Iterator[Measurement] | Iterator[pd.DataFrame]:
        if unfinished is None:
            yield from analysis.measured(layer, options)
            return
        result = unfinished.find(layer)
        if result is None:
            started, layer.counts = time.monotonic(), Counts()
            try:
                measurements = cast(
                    "list[Measurement]", [*analysis.measured(layer, options)]
                )  # of no finer rows
            finally:
                into.counts.merge(layer.counts)
            yield from measurements
            result = LayerResult(measurements, layer.counts.counts, layer.heads, layer.total_heads)
            unfinished.keep(layer, result, time.monotonic() - started)
            return
        into.counts.merge(Counts(result.counts))
        layer.heads, layer.total_heads = [*result.heads], result.total_heads
        yield from result.measurements

    def measure(layer: Layer) -> None:
        into.sources[layer.index] = layer.record.source
        try:
            _need_attention(layer.record, read)
            layer = layer.seen_by(analysis.cross)
            for measurement in measurements_of(layer):
                if isinstance(measurement, pd.DataFrame):
                    if layer.step is not None:
                        measurement.insert(list(measurement.columns).index("layer") + 1, STEP, layer.step)
                    into.rows.append(measurement)
                    continue
                if measurement.form != "intermediate":
                    into.add(measurement, layer)
                if analysis.across is not None:
                    record = LayerRecord(layer.index, layer.record.path)  # its tensors are freed
                    measured.append((replace(layer, record=record, before=(), perturbed=None), measurement))
        except NotApplicable as reason:
            into.leave_out(str(reason), layer.index)
        into.heads |= set(layer.heads)
        into.most_heads = max(into.most_heads, layer.total_heads)

    def end_batch() -> None:
        if analysis.across is not None and measured:
            for measurement in analysis.across(measured, options):
                into.add(measurement, measured[-1][0])
        measured.clear()

    hold = analysis.together(options)
    each_layer(
        source, settings, measure, hold=hold, counts=into.counts, end_batch=end_batch, progress=progress
    )
    return into


def _need_attention(record: LayerRecord, sites: Sequence[str]) -> None:
    """Raise `NotApplicable` for what mixes tokens without attention, unless only what passes around it is read."""
    if record.mixer and (not sites or any(getattr(record, site, None) is None for site in sites)):
        raise NotApplicable(f"{record.mixer} is no attention")


def each_layer(
    source: Source,
    settings: RunSettings,
    use: Callable[[Layer], None],
    *,
    hold: bool = False,
    counts: Counts | None = None,
    end_batch: Callable[[], None] = lambda: None,
    progress: Progress | None = None,
) -> None:
    """Pass every layer of every batch to ``use`` as soon as the model has run it.

    With ``hold`` the layers before it in its batch come along (``layer.before``), which are then all in memory at once.
    """
    done = _Done(source, progress)
    counted = Counts() if counts is None else counts
    for batch in source.batches():
        before: list[LayerRecord] = []
        passes = batch.passes() if hold and batch.passes is not None else None

        def on_layer(
            record: LayerRecord,
            tokens: TokenInfo | None,
            perturbed: LayerRecord | None,
            batch=batch,
            before=before,
            passes=passes,
        ) -> None:
            _check_tokens(tokens, batch.ids)
            record, perturbed = with_float64(record), perturbed and with_float64(perturbed)
            layer = Layer(
                record, batch.ids, tokens, settings.seed, settings.heads, counts=counted, model=source.module,
                images=batch.images, before=tuple(before), step=batch.step, query=batch.query, perturbed=perturbed,
                passes=passes,
            )  # fmt: skip
            use(layer)
            if hold:
                before.append(record)
            done.layer(len(batch.ids))

        batch.run(on_layer, hold)
        done.batch(len(batch.ids))
        end_batch()
    done.all()


def _check_tokens(tokens: TokenInfo | None, ids: Sequence[str]) -> None:
    """Raise `InputError` for an input without a real token."""
    if tokens is None or len(tokens.mask) != len(ids):
        return
    empty = [name for name, real in zip(ids, tokens.mask.any(-1).tolist(), strict=True) if not real]
    if empty:
        raise InputError(f"input {empty[0]} holds only padding; leave it out of the batch")


class _Done:
    """Call a function with the fraction of all inputs that is done, after every layer."""

    def __init__(self, source: Source, call: Progress | None) -> None:
        self.size, self.depth, self.call = max(1, source.size), source.depth, call
        self.inputs = self.layers = 0
        self.reached = 0.0

    def layer(self, inputs: int) -> None:
        """Count another layer of a batch of this size."""
        self.layers += 1
        self._reach(self.inputs + min(1.0, self.layers / self.depth) * max(1, inputs))

    def batch(self, inputs: int) -> None:
        """Count the inputs of a finished batch, which shows the number of its layers."""
        self.inputs, self.layers, self.depth = self.inputs + inputs, 0, max(1, self.layers)

    def all(self) -> None:
        """Report the end."""
        self._reach(self.size)

    def _reach(self, inputs: float) -> None:
        if self.call is not None and inputs > self.reached:
            self.reached = inputs
            self.call(inputs / self.size)


def model_source(
    settings: RunSettings,
    sites: Sequence[str],
    *,
    keep_nonfinite: bool = False,
    map_limit: int | None = None,
    perturb: Callable[[Any], Any] | None = None,
) -> Source:
    """Return a model over its inputs; only ``sites`` of the chosen layers are captured.

    With ``keep_nonfinite`` layers with NaN or infinite values are captured unchecked, with a note. Maps with more
    entries than ``map_limit`` are captured as their operands. With ``perturb`` the model also runs on the perturbed
    batches, which must be named inputs, not tensors.
    """
    loaded, identity, inputs = _loaded_inputs(settings)
    if perturb is not None and isinstance(inputs, _Plain):
        raise InputError("this analysis perturbs the inputs; give them by name, or what inputs() returned")
    module = getattr(loaded, "module", loaded)
    chosen = parse_numbers("layer", settings.layers)
    depth = len(attention_modules(module) if chosen is None else chosen)

    def batch_of(part: Any) -> Batch:
        def run(on_layer: OnLayer, hold: bool) -> None:
            perturbed = None if perturb is None else seen(perturb(part))
            perturbed_record = (
                (lambda number: None) if perturbed is None else (lambda number: perturbed[number])
            )
            each = (
                None
                if hold
                else (lambda record, tokens: on_layer(record, tokens, perturbed_record(record.index)))
            )
            captured = seen(_model_inputs(part), keep_nonfinite, each)
            source.notes += [note for note in captured.notes if note not in source.notes]
            for record in captured:
                on_layer(record, captured.tokens_of(record.index), perturbed_record(record.index))

        return Batch(part.ids, run, getattr(part, "images", None), passes=partial(_passes, loaded, part))

    def seen(what: Any, keep: bool = False, each: Any = None) -> Capture:
        return capture(
            loaded,
            what,
            layers=settings.layers,
            sites=sites,
            keep_nonfinite=keep,
            each=each,
            map_limit=map_limit,
        )

    def batches() -> Iterator[Batch]:
        return map(batch_of, inputs.batches(settings.batch_size))

    source = Source(
        identity, inputs.identity, len(inputs), batches, [*inputs.notes], module, max(1, depth), inputs
    )
    return source


def _passes(loaded: Any, part: Any) -> Passes:
    """Return further passes of a model over a batch."""
    module = module_of(loaded)
    projections = Projections(module)

    def changed(changes: Mapping[Any, Any], site: str, grad: bool, arguments: Any) -> Any:
        if grad or site != "head_out":
            with torch.set_grad_enabled(grad), intervene(loaded, changes, site):
                return call_model(module, arguments)

        def replacement(value: Tensor) -> Callable[[Tensor], Tensor]:
            def replace_output(output: Tensor) -> Tensor:
                projections.end()
                return value

            return replace_output

        replacements = {head: replacement(value) for head, value in changes.items()}
        with torch.no_grad(), intervene(loaded, replacements), projections.reused():
            return call_model(module, arguments)

    def run(changes: Mapping[Any, Any], site: str = "head_out", *, grad: bool = False) -> Tensor:
        arguments = batch_on_device(part.batch, module)
        if changes:
            result = changed(changes, site, grad, arguments)
        else:
            with torch.no_grad():
                result = call_model(module, arguments)
        logits = result if isinstance(result, Tensor) else getattr(result, "logits", None)
        predicts = getattr(module, "num_classes", None) != 0
        if not isinstance(logits, Tensor) or logits.ndim not in (2, 3) or not predicts:
            raise InputError(
                f"{getattr(loaded, 'spec', type(module).__name__)} returns no logits; give a model that predicts "
                "classes or next tokens"
            )
        return logits

    def targets() -> Tensor | None:
        if isinstance(part.batch, Mapping) and "input_ids" in part.batch:
            return part.batch["input_ids"]
        classes = getattr(part, "targets", None)
        if classes is None:
            return None
        if part.classes is not None:
            names = (getattr(loaded, "meta", None) or {}).get("classes") or ()
            try:
                outputs = class_indices(part.classes, getattr(module, "num_classes", 0) or len(names), names)
            except InputError:
                return None
            classes = [outputs[number] for number in classes]
        return torch.tensor(classes)

    def outcome(name: str) -> int:
        texts = isinstance(part.batch, Mapping) and "input_ids" in part.batch
        tokenizer = getattr(loaded, "tokenizer", None) if texts else None
        return outcome_index(name, (getattr(loaded, "meta", None) or {}).get("classes") or (), tokenizer)

    return Passes(module, run, targets(), outcome)


def _loaded_inputs(settings: RunSettings, room: int | None = None) -> tuple[Any, dict[str, Any], Any]:
    """The model, its identity, and its inputs; texts leave ``room`` for that number of generated tokens."""
    loaded, spec, identity = _loaded(settings)
    batch: Any = settings.inputs
    if are_inputs(batch):
        if isinstance(loaded, nn.Module):
            raise InputError(
                f"inputs {batch!r} need a model that load() returned; give {spec} its batch itself"
            )
        from workbench.data.batches import DEFAULT_MAX_LENGTH
        from workbench.data.batches import inputs as choose

        most = getattr(loaded, "max_length", None)
        if room is not None and most is not None and room > most - 2:
            raise InputError(
                f"{loaded.spec} reads {most} tokens: generate at most {most - 2}, after a prompt"
            )
        longest = None if room is None or most is None else min(DEFAULT_MAX_LENGTH, most - room)
        batch = choose(
            batch,
            loaded,
            n=settings.n,
            seed=settings.seed,
            preprocessing=settings.preprocessing,
            max_length=longest,
            order=settings.order,
        )
    return loaded, identity, _Plain(batch) if is_plain(batch) or not hasattr(batch, "batches") else batch


def _model_inputs(part: Any) -> Any:
    """The argument of `capture` for a batch of named inputs or of plain ones."""
    return part.batch if isinstance(part, _Plain) else part


def weights_source(settings: RunSettings) -> Source:
    """Return the attention layers of a model as one batch without inputs, for analyses of weights.

    Layers are the attention modules in the order of the model's definition; one that is used twice counts once.
    Raises `InputError` where there is none, or no such layer.
    """
    loaded, spec, identity = _loaded(settings)
    module = getattr(loaded, "module", loaded)
    attention, mixers = dict(attention_modules(module)), token_mixers(module)
    if not attention:
        raise InputError(f"{spec} has no attention that capture can see; see docs/capture.md")
    layers = [path for path, _ in module.named_modules() if path in attention or path in mixers]

    def record(number: int) -> LayerRecord:
        mixer = mixers.get(layers[number], "")
        return LayerRecord(number, layers[number], kind="none" if mixer else "token", mixer=mixer)

    records = [record(number) for number in parse_numbers("layer", settings.layers, len(layers))]
    return Source(
        identity, {}, 0, lambda: iter([_stored_batch([], records, None)]), module=module, depth=len(records)
    )


def _stored_batch(ids: Sequence[str], records: Sequence[LayerRecord], tokens: TokenInfo | None) -> Batch:
    """A batch of captured layers."""
    return Batch(
        ids, _runner([(record, None if tokens is None else tokens.of(record)) for record in records])
    )


def _runner(
    layers: Sequence[tuple[LayerRecord, TokenInfo | None]],
) -> Callable[[OnLayer, bool], None]:
    """The function that runs a batch of captured layers, each with its tokens."""

    def run(on_layer: OnLayer, hold: bool) -> None:
        for record, tokens in layers:
            on_layer(record, tokens, None)

    return run


_LAST: ContextVar[dict[tuple[str, ...], Any] | None] = ContextVar("last", default=None)


@contextmanager
def keeping_the_model() -> Generator[None]:
    """Load a model once for successive runs that name the same one; a run leaves it unchanged."""
    token = _LAST.set({})
    try:
        yield
    finally:
        _LAST.reset(token)


def _loaded(settings: RunSettings) -> tuple[Any, str, dict[str, Any]]:
    """The model, its name and its identity."""
    model, spec, identity = _model_of(settings)
    return model, spec, _named(identity, settings)


def _named(identity: dict[str, Any], settings: RunSettings) -> dict[str, Any]:
    """The identity with the name that the settings give the model."""
    return identity if settings.name is None else identity | {"name": settings.name}


def _model_of(settings: RunSettings) -> tuple[Any, str, dict[str, Any]]:
    model = settings.model
    if isinstance(model, str):
        from workbench.models.loading import load

        key = (model, str(settings.device), str(settings.dtype))
        last = _LAST.get()
        last = {} if last is None else last
        if key not in last:
            last.clear()  # before another takes memory
            last[key] = load(model, device=settings.device, dtype=settings.dtype)
        model = last[key]
    if isinstance(model, nn.Module):
        from workbench.models.loading import fingerprint

        plain = module_of(model)
        name = type(plain).__name__
        structure = sha256_bytes(repr(plain).encode())[:16]  # another attention may have the same weights
        identity = {"spec": name, "checkpoint": None, "sha256": fingerprint(plain), "structure": structure}
        return model, name, identity
    if not hasattr(model, "module"):
        kind = type(model).__name__
        raise InputError(f"model must be a spec, what load() returned or a torch module; got {kind}")
    return model, model.spec, dict(model.identity)


@dataclass
class _Plain:
    """A numbered batch of the user's tensors, instead of named inputs."""

    batch: Any
    start: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        tensors = self.batch.values() if isinstance(self.batch, Mapping) else [self.batch]
        for tensor in tensors:
            if not isinstance(tensor, Tensor) or tensor.ndim == 0:
                raise InputError(
                    "inputs must be a spec, what inputs() returned, a tensor, or a mapping of tensors with "
                    f"the inputs along axis 0; got {type(tensor).__name__}"
                )
        if len({len(tensor) for tensor in tensors}) != 1:
            raise InputError("the tensors of a batch must have one size along axis 0, the inputs")

    def __len__(self) -> int:
        return len(next(iter(self.batch.values())) if isinstance(self.batch, Mapping) else self.batch)

    @property
    def ids(self) -> list[str]:
        return [str(self.start + i) for i in range(len(self))]

    @property
    def identity(self) -> dict[str, Any]:
        return {"spec": "tensor", "n": len(self), "seed": None, "sha256": None}

    def batches(self, size: int) -> Iterator[_Plain]:
        for start in range(0, len(self), size):
            cut = slice(start, start + size)
            if isinstance(self.batch, Mapping):
                yield _Plain({key: value[cut] for key, value in self.batch.items()}, start)
            else:
                yield _Plain(self.batch[cut], start)


def file_source(
    file: str | Path | Capture, sites: Sequence[str], settings: RunSettings, of_steps: bool = False
) -> Source:
    """Cut a file of q, k, v (or a capture in memory) into batches; generated tokens are batches by step.

    Raises `InputError` where one of ``sites`` is missing and cannot be computed: attention is computed from q, k, scale
    and mask, the heads' output from attention and v; hidden states cannot be.
    """
    captured = file if isinstance(file, Capture) else read_qkv(file)
    name = Path(file).name if not isinstance(file, Capture) else "capture"
    for record in captured:
        # Layers without attention between tokens lack these by nature: the analysis will say so.
        if record.mixer:
            continue
        natural = {"q", "k", "v"} if record.kind == "none" else set()
        for site in set(sites) - natural - {"mask", "scale", "attn", "head_out"}:
            if getattr(record, site, None) is None:
                raise InputError(
                    f"{name}: layer {record.index} holds no {site!r}, and queries, keys and values do not "
                    f"give it; give model and inputs, or capture that site into the file (--sites {site})"
                )
        if "attn" in sites and not natural and record.attn is None and (record.q is None or record.k is None):
            raise InputError(
                f"{name}: layer {record.index} holds neither 'attn' nor 'q' and 'k' to compute it from"
            )
    numbers = _pick(captured, settings.layers)
    size = next(filter(None, (inputs_in(captured[number]) for number in numbers)), 0)
    notes = []
    if captured.tokens is not None and all(captured[number].origin is None for number in numbers):
        size = len(captured.tokens) or size
        sizes = {number: inputs_in(captured[number]) for number in numbers}
        notes = [
            f"layer {number} left out: holds {rows} images, windows or folded heads of {size} inputs, so its rows are "
            "no inputs"
            for number, rows in sizes.items()
            if rows not in (0, size)
        ]
        numbers = [number for number in numbers if sizes[number] in (0, size)]
    model = captured.model
    identity = {
        "spec": model.get("spec") or name,
        "checkpoint": model.get("checkpoint"),
        "sha256": model.get("fingerprint"),
    }
    identity = _named(identity, settings)
    inputs = {"spec": None, "n": size, "seed": None, "sha256": None} | captured.inputs
    if not isinstance(file, Capture):
        from workbench.core.files import sha256_file

        inputs["qkv"] = {"name": name, "sha256": sha256_file(file)}

    def batches() -> Iterator[Batch]:
        for start in range(0, size, settings.batch_size):
            cut = slice(start, min(start + settings.batch_size, size))
            records = [cut_layer(captured[number], cut, size) for number in numbers]
            tokens = captured.tokens[cut] if captured.tokens is not None else None
            ids = [str(number) for number in range(size)[cut]]
            yield _stored_batch(ids, records, _without_unseen(tokens, records))

    content = captured if isinstance(file, Capture) else inputs["qkv"]
    notes += [note for note in captured.notes if note not in notes]
    depth, generated = max(1, len(numbers)), captured.generated
    if generated is None:
        return Source(identity, inputs, size, batches, notes, depth=depth, content=content)
    if not of_steps:
        raise InputError(
            f"{name} holds a query for each generated token, and this analysis is one of whole texts; capture the text "
            "in one pass, capture(model, captured.generated.batch), or take "
            + ", ".join(name for name, analysis in ANALYSES.items() if analysis.of_steps)
        )
    chosen = replace(captured, layers=[captured[number] for number in numbers])
    inputs["steps"] = generated.steps

    def steps() -> Iterator[Batch]:
        for start in range(0, size, settings.batch_size):
            for step in range(generated.steps):
                batch = torch.arange(start, min(start + settings.batch_size, size))
                rows = batch[generated.real[batch, step]]  # inputs that have ended are left out
                if len(rows):
                    layers = steps_of(chosen, step, rows)
                    ids, query = [str(row) for row in rows.tolist()], generated.prompt_tokens + step - 1
                    yield Batch(ids, _runner(layers), step=step, query=query)

    measured = max(1, int(generated.real.sum()))
    return Source(identity, inputs, measured, steps, notes, depth=depth, content=content)


def _pick(captured: Capture, layers: Any) -> list[int]:
    """Numbers of the chosen layers that the capture holds; negative ones count from its last."""
    present = [record.index for record in captured]
    chosen = parse_numbers("layer", layers)
    if chosen is None:
        return present
    return sorted({captured[number].index for number in chosen})


def _without_unseen(tokens: TokenInfo | None, records: Sequence[LayerRecord]) -> TokenInfo | None:
    """Tokens, with those that a mask (batch, head, query, key) hides from every query marked as padding."""
    attention = [record for record in records if not record.mixer]
    mask = attention[0].mask if attention and not attention[0].causal else None
    if tokens is None or mask is None or attention[0].origin is not None or not tokens.mask.all():
        return tokens
    batch, keys = tokens.mask.shape
    if mask.shape[-1] != keys or mask.ndim != 4:
        return tokens
    seen = visible_keys(mask, mask).any((1, 2))
    return replace(tokens, mask=seen.expand(batch, keys))


@checked
def capture_inputs(
    model: setting.AnyModel,
    inputs: setting.AnyInputs,
    *,
    n: setting.Count | None = None,
    seed: setting.Seed = 0,
    layers: Numbers = None,
    order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None,
    dtype: setting.DType | None = None,
    sites: Sequence[str] = ("q", "k", "v"),
    generate: Annotated[int, Ge(1)] | None = None,
) -> Capture:
    """Capture all inputs, a batch at a time, as one capture (what ``workbench capture`` writes).

    Settings are those of `analyze`. Sites are held in memory for all inputs at once. With ``generate`` the model
    continues all inputs, in one batch, by that number of tokens, and each token is captured.
    """
    chosen = RunSettings(
        model, inputs, n, seed, layers, None, order, preprocessing, batch_size, device, dtype
    )
    loaded, _, named = _loaded_inputs(chosen, room=generate)
    if generate is not None:
        batch = next(named.batches(max(1, len(named))))
        captured = capture_generation(
            loaded, _model_inputs(batch), generate, layers=chosen.layers, sites=sites
        )
        captured.inputs = named.identity
        return captured
    parts = [
        capture(loaded, _model_inputs(part), layers=chosen.layers, sites=sites)
        for part in named.batches(chosen.batch_size)
    ]
    joined = parts[0] if len(parts) == 1 else join_captures(parts)
    joined.inputs = named.identity
    return joined
