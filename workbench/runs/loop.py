"""The one loop: every layer of every batch is measured as soon as the model has run it, and accumulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd

from workbench.analyses.layer import Layer, NotApplicable
from workbench.analyses.registry import Analysis
from workbench.captures import LayerRecord, TokenInfo
from workbench.frames.measurement import Accumulator, Counts, Measurement
from workbench.runs.settings import RunSettings
from workbench.runs.sources import Source, model_source

Progress = Callable[[float], None]
"""A function of the fraction that is done; it may raise to stop the work."""


def analysis_source(analysis: Analysis, options: Any, settings: RunSettings) -> Source:
    """The model over its inputs with all that the analysis reads."""
    perturb = analysis.perturb
    return model_source(
        settings,
        (*analysis.reads(options), *analysis.also),
        keep_nonfinite=analysis.counts_nonfinite,
        perturb=None if perturb is None else lambda given: perturb(given, options, settings.seed),
    )


def accumulate(
    analysis: Analysis,
    options: Any,
    source: Source,
    settings: RunSettings,
    progress: Progress | None = None,
) -> Accumulator:
    """Measure every layer of every batch. ``options`` are what `find_analysis` gives.

    A layer is freed before the model runs the next, unless the analysis compares layers. ``progress`` is called after
    every layer of every batch, lastly with 1.0.
    """
    # analyses with the option say what they measure head by head; the others have no means to take
    aggregate = not getattr(options, "per_head", True)
    into = Accumulator(aggregate, getattr(options, "per_input", True))
    measured: list[tuple[Layer, Measurement]] = []
    """What the layers of this batch gave, where something follows from all of them."""

    def measure(layer: Layer) -> None:
        try:
            for measurement in analysis.measured(layer, options):
                if isinstance(measurement, pd.DataFrame):
                    into.rows.append(measurement)
                    continue
                if measurement.form != "held":
                    into.add(measurement, layer)
                if analysis.across is not None:
                    place = LayerRecord(layer.index, layer.record.path)  # its tensors are let go
                    measured.append((replace(layer, record=place, before=(), perturbed=None), measurement))
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
    """Hand every layer of every batch to ``use`` as soon as the model has run it, with what it needs to be read.

    With ``hold`` the layers before it in its batch come along (``layer.before``), which are then all held at once.
    """
    done = _Done(source, progress)
    counted = Counts() if counts is None else counts
    for batch in source.batches():
        before: list[LayerRecord] = []

        def on_layer(
            record: LayerRecord,
            tokens: TokenInfo | None,
            perturbed: LayerRecord | None,
            batch=batch,
            before=before,
        ) -> None:
            layer = Layer(
                record, batch.ids, tokens, settings.seed, settings.heads, counts=counted, model=source.module,
                images=batch.images, before=tuple(before), perturbed=perturbed,
            )  # fmt: skip
            use(layer)
            if hold:
                before.append(record)
            done.layer(len(batch.ids))

        batch.run(on_layer, hold)
        done.batch(len(batch.ids))
        end_batch()
    done.all()


class _Done:
    """Calls a function with the fraction of all inputs that is done, after every layer."""

    def __init__(self, source: Source, call: Progress | None) -> None:
        self.size, self.depth, self.call = max(1, source.size), source.depth, call
        self.inputs = self.layers = 0
        self.reached = 0.0

    def layer(self, inputs: int) -> None:
        """Another layer of so many inputs."""
        self.layers += 1
        self._reach(self.inputs + min(1.0, self.layers / self.depth) * max(1, inputs))

    def batch(self, inputs: int) -> None:
        """No more layers of these inputs; now it is known how many there are."""
        self.inputs, self.layers, self.depth = self.inputs + inputs, 0, max(1, self.layers)

    def all(self) -> None:
        """Nothing is left."""
        self._reach(self.size)

    def _reach(self, inputs: float) -> None:
        if self.call is not None and inputs > self.reached:
            self.reached = inputs
            self.call(inputs / self.size)
