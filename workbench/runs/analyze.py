"""``analyze``: one named analysis over a model and its inputs, or over a file of q, k, v, as a tidy frame."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor, nn

from workbench.analyses.analysis import Analysis
from workbench.analyses.layer import Layer, NotApplicable
from workbench.analyses.registry import ANALYSES, check_request
from workbench.captures import Capture, LayerRecord
from workbench.core.errors import InputError
from workbench.core.selection import parse_numbers
from workbench.frames.accumulator import Accumulator
from workbench.frames.measurement import Measurement
from workbench.frames.provenance import versions
from workbench.frames.results import RANDOM_WEIGHTS, UNTRAINED_NOTE
from workbench.runs.cache import Place
from workbench.runs.stream import Part, Stream, capture_inputs, stream_file, stream_model, stream_weights
from workbench.runs.sweep.parts import SWEEP, read_sweep

if TYPE_CHECKING:
    from workbench.data.batches import Inputs, ListedInputs
    from workbench.models.loading import LoadedModel

__all__ = ["ANALYSES", "analyze", "capture_inputs", "check_request", "gather"]

PROGRESS_AFTER = 2.0  # seconds of expected work from which a progress bar is shown


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
    progress: bool | Callable[[float], None] = False,
    cache: bool | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Run one analysis and return its tidy frame, one row per number (columns: `workbench.frames.results.COLUMNS`).

    Give a ``model`` (a spec, what `load` returned, or any torch module) with ``inputs`` (a spec, what
    `inputs` returned, or the batch itself), or ``qkv``, a file or capture holding q, k, v, or for an analysis
    of weights (its ``sites`` are empty) the ``model`` alone. Inputs "sweep:FOLDER" are those of a finished sweep, whose
    numbers are read in the place of a run; its options and settings must be those given here. ``n``, ``seed``
    and ``preprocessing`` choose and prepare inputs given by spec; ``checkpoint``, ``device`` and ``dtype``
    load a model given by spec. ``layers`` and ``heads`` are numbers or "0,3-5"; heads of grouped queries are
    those of the keys in analyses that read no queries. Only the sites the analysis reads are captured, ``batch_size``
    inputs at a time, and a layer is measured and let go before the model runs the next, unless the analysis compares
    layers; rows come by layer, metric and input and do not depend on it. Analyses with the option ``per_head`` give
    means instead, unless it is set: rows per layer (``input`` and ``head`` null), per input (``layer`` and ``head``
    null) and overall (all three null).

    ``progress`` shows a bar where the work takes longer than two seconds; a function in its place is called with the
    fraction that is done after every layer of every batch, lastly with 1.0. It stops the work by raising what it
    likes, which comes out here with the model as it was. ``options`` are the analysis' own: ``ANALYSES[name].options``.

    ``cache`` keeps the result on disk by all that it depends on, and finds it there the next time (docs/cache.md); None
    does what the environment variable ``WORKBENCH_CACHE_RESULTS`` says (1 or 0), nothing unless it is set.

    ``frame.attrs["provenance"]`` holds what the numbers come from; ``frame.attrs["notes"]`` what a reader
    should know (layers left out, findings).

    Raises `UnknownName` for an unknown analysis, option, model or layer, `InputError` for values that do not
    fit, and what `load`, `inputs` and `capture` raise.
    """
    chosen = check_request(name, options)
    analysis = ANALYSES[name]
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise InputError(f"batch_size must be a whole number from 1 up; got {batch_size!r}")
    if heads is not None and not analysis.of_heads:
        raise InputError(f"{name} measures whole layers; leave out heads={heads!r}")
    parse_numbers("head", heads)
    settings = {
        "layers": layers, "heads": heads, "batch_size": batch_size, "device": device, "dtype": dtype
    }  # fmt: skip
    told = {key: None if value is None else str(value) for key, value in settings.items()}
    if isinstance(inputs, str) and inputs.startswith(SWEEP) and qkv is None:
        if not isinstance(model, str):
            raise InputError(f"{inputs} holds results by the name of their model; give the model's spec")
        asked = {"layers": layers, "heads": heads, "seed": seed, "checkpoint": checkpoint}
        asked |= {"preprocessing": preprocessing, "device": device, "dtype": dtype}
        gathered, stream, chosen = read_sweep(
            inputs.removeprefix(SWEEP), name, model, chosen, given=options, settings=asked, n=n
        )
        return _Run(analysis, chosen, stream, seed, heads, gathered).frame(told)
    if not analysis.sites:
        if model is None or inputs is not None or qkv is not None:
            raise InputError(f"{name} reads the weights of a model; give model alone, without inputs or qkv")
        stream = stream_weights(model, layers, checkpoint=checkpoint, device=device, dtype=dtype)
    elif qkv is not None and model is None and inputs is None:
        if analysis.perturb is not None:
            raise InputError(f"{name} runs a model on perturbed inputs; give model and inputs, not a file")
        if n is not None:
            raise InputError(
                "n chooses among inputs, and a file of queries, keys and values is read whole; leave n out"
            )
        stream = stream_file(qkv, analysis.reads(analysis.asked(chosen)), layers, batch_size)
    elif qkv is not None or model is None or inputs is None:
        raise InputError("give model and inputs, or qkv (a file of queries, keys and values), and not both")
    else:
        stream = _stream(
            analysis, chosen, model, inputs, layers, batch_size, seed,
            n=n, checkpoint=checkpoint, preprocessing=preprocessing, device=device, dtype=dtype,
        )  # fmt: skip
    question = {"analysis": name, "options": chosen, "seed": seed, "settings": told}
    place = Place(cache, stream, ANALYSES.is_ours(name), question)
    held = place.find()
    if held is not None:
        if callable(progress):
            progress(1.0)
        return held
    run = _Run(analysis, chosen, stream, seed, heads)
    with _bar(analysis.title, stream.size) if progress is True else nullcontext(progress or None) as tell:
        run.take_all(_Done(stream, tell))
    return place.keep(run.frame(told))


def gather(
    name: str,
    model: LoadedModel,
    inputs: ListedInputs,
    options: Mapping[str, Any],
    *,
    seed: int = 0,
    layers: Any = None,
    heads: Any = None,
    batch_size: int = 8,
    progress: Callable[[float], None] | None = None,
) -> Accumulator:
    """What `analyze` would measure on these inputs, before it becomes a frame: a part of a sweep.

    ``options`` are complete (`check_request`). Raises what `analyze` raises.
    """
    analysis = ANALYSES[name]
    run = _Run(
        analysis, options, _stream(analysis, options, model, inputs, layers, batch_size, seed), seed, heads
    )
    run.take_all(_Done(run.stream, progress))
    return run.gathered


def _stream(
    analysis: Analysis,
    options: Mapping[str, Any],
    model: Any,
    inputs: Any,
    layers: Any,
    batch_size: int,
    seed: int,
    **choice: Any,
) -> Stream:
    """The model over its inputs with all that the analysis reads."""
    asked, change = analysis.asked(options), analysis.perturb
    perturb = None if change is None else lambda given: change(given, asked, seed)
    return stream_model(
        model, inputs, (*analysis.reads(asked), *analysis.also), layers, batch_size,
        keep_nonfinite=analysis.counts_nonfinite, perturb=perturb, seed=seed, **choice,
    )  # fmt: skip


class _Run:
    """Gathers the rows and notes of one analysis, part by part."""

    def __init__(
        self,
        analysis: Analysis,
        options: Mapping[str, Any],
        stream: Stream,
        seed: int,
        heads: Any,
        gathered: Accumulator | None = None,
    ) -> None:
        self.analysis, self.options, self.stream = analysis, analysis.asked(options), stream
        self.seed, self.heads = seed, heads
        # analyses with the option say what they measure head by head; the others have no means to take
        aggregate = not getattr(self.options, "per_head", True)
        per_input = getattr(self.options, "per_input", True)
        self.gathered = Accumulator(aggregate, per_input) if gathered is None else gathered
        self.taken: list[tuple[Layer, Measurement]] = []
        """What the layers of this batch gave, for what follows from all of them."""

    def take_all(self, done: _Done) -> None:
        """Measure every layer of every batch; layers that need no other one as soon as the model has run them."""
        alone = not self.analysis.together(self.options)
        for part in self.stream.parts(partial(self.add, done=done) if alone else None):
            self.add(part, done)
            done.batch(part.ids)
            if self.analysis.across is not None and self.taken:
                for measurement in self.analysis.across(self.taken, self.options):
                    self.gathered.add(measurement, self.taken[-1][0])
            self.taken.clear()
        done.all()

    def add(self, part: Part, done: _Done) -> None:
        """Measure the layers that a part holds."""
        gathered = self.gathered
        for number, record in enumerate(part.capture):
            perturbed = None if part.perturbed is None else part.perturbed[record.index]
            layer = Layer(
                record, part.ids, part.capture.tokens, self.seed, self.heads, counts=gathered.counts,
                model=self.stream.module, images=part.pictures, before=part.capture.layers[:number],
                perturbed=perturbed,
            )  # fmt: skip
            try:
                for measurement in self.analysis.measured(layer, self.options):
                    if measurement.form != "held":
                        gathered.add(measurement, layer)
                    if self.analysis.across is not None:
                        place = LayerRecord(record.index, record.path)  # its tensors are let go
                        self.taken.append(
                            (replace(layer, record=place, before=(), perturbed=None), measurement)
                        )
            except NotApplicable as reason:
                gathered.leave_out(str(reason), record.index)
            gathered.heads |= set(layer.heads)
            gathered.most_heads = max(gathered.most_heads, layer.total_heads)
            done.layer(part.ids)

    def frame(self, settings: dict[str, Any]) -> pd.DataFrame:
        gathered = self.gathered
        if not gathered:
            told = "; ".join(gathered.layers_left_out())
            raise InputError(f"{self.analysis.name}: nothing to measure; {told}")
        wanted = parse_numbers("head", self.heads) or ()
        absent = {head for head in wanted if head >= 0} - gathered.heads
        if absent and gathered.most_heads:
            raise InputError(f"there is no head {min(absent)}: heads are 0 to {gathered.most_heads - 1}")
        model = self.stream.model
        frame = gathered.frame(model=model["spec"], checkpoint=model.get("checkpoint"))
        notes = gathered.notes()
        if model.get("checkpoint") == RANDOM_WEIGHTS:
            notes.append(f"{model['spec']} {UNTRAINED_NOTE}")
        notes += self.stream.notes
        notes += [*_silent_nulls(frame), *self.analysis.findings(_of_inputs(frame), self.options)]
        frame.attrs["notes"] = notes
        frame.attrs["provenance"] = {
            "analysis": self.analysis.name,
            "options": asdict(self.options),
            "model": model,
            "inputs": self.stream.inputs,
            "seed": self.seed,
            "settings": settings,
            "notes": notes,
            "versions": versions(),
        }
        return frame


def _of_inputs(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows as findings look at them: of single inputs, or where there are none their means in the place of one."""
    if frame["input"].notna().any() or not (frame["statistic"] == "std").any():
        return frame
    return frame[frame["statistic"] == "mean"].assign(input="mean", statistic=pd.NA)


def _silent_nulls(frame: pd.DataFrame) -> list[str]:
    """Which quantities chance cannot move: all null samples agree, and there is no z."""
    drawn = frame[frame["null_low"].notna()]
    if drawn.empty:
        return []
    places = ["metric", "axis", "statistic", "convention", "candidate", "null"]
    moved = drawn["z"].notna().groupby([drawn[place] for place in places], dropna=False, sort=False).any()
    silent = [
        f"{' '.join(str(part) for part in quantity if pd.notna(part))} ({null})"
        for *quantity, null in moved.index[~moved]
    ]
    return [f"no z, since all null samples agree: {', '.join(silent)}"] if silent else []


class _Done:
    """Tells a function the fraction of all inputs that is done, after every layer."""

    def __init__(self, stream: Stream, tell: Callable[[float], None] | None) -> None:
        self.size, self.depth, self.tell = max(1, stream.size), stream.depth, tell
        self.inputs = self.layers = 0
        self.told = 0.0

    def layer(self, ids: Sequence[str]) -> None:
        """Another layer of these inputs."""
        self.layers += 1
        self._tell(self.inputs + min(1.0, self.layers / self.depth) * len(ids or [""]))

    def batch(self, ids: Sequence[str]) -> None:
        """No more layers of these inputs; now it is known how many there are."""
        self.inputs, self.layers, self.depth = self.inputs + len(ids), 0, max(1, self.layers)

    def all(self) -> None:
        """Nothing is left."""
        self._tell(self.size)

    def _tell(self, inputs: float) -> None:
        if self.tell is not None and inputs > self.told:
            self.told = inputs
            self.tell(inputs / self.size)


@contextmanager
def _bar(title: str, total: int) -> Generator[Callable[[float], None]]:
    """A function that takes the fraction that is done; shows a bar once the work turns out to be long."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    bar = Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True))
    task = bar.add_task(title, total=total)
    started = time.perf_counter()

    def tell(done: float) -> None:
        bar.update(task, completed=done * total)
        if not bar.live.is_started and time.perf_counter() - started > PROGRESS_AFTER * done:
            bar.start()

    try:
        yield tell
    finally:
        if bar.live.is_started:
            bar.stop()
