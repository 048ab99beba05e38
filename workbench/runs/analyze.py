"""``analyze``: one named analysis over a model and its inputs, or over a file of q, k, v, as a tidy frame."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analyses.null_values import SOURCES
from workbench.analyses.registry import ANALYSES, Analysis, OfValues, Per, check_request, find_analysis
from workbench.captures import Capture
from workbench.core.errors import InputError
from workbench.core.options import parse_numbers
from workbench.core.progress import bar_of_fraction
from workbench.frames.measurement import Accumulator
from workbench.frames.provenance import versions
from workbench.frames.results import UNTRAINED_NOTE, is_random, name_of_model, shared
from workbench.runs.cache import CacheEntry
from workbench.runs.loop import (
    Source,
    accumulate,
    analysis_source,
    capture_inputs,
    file_source,
    weights_source,
)
from workbench.runs.settings import SETTINGS, RunSettings

__all__ = ["ANALYSES", "analyze", "capture_inputs", "check_request", "result_frame"]


def analyze(
    name: str,
    /,
    settings: RunSettings | None = None,
    *,
    per: Per | None = None,
    qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False,
    cache: bool | None = None,
    **asked: Any,
) -> pd.DataFrame:
    """Run one analysis and return its tidy frame, one row per number (columns: `workbench.frames.results.COLUMNS`).

        analyze("gram-spectrum", model="bundled:digits-vit", inputs="bundled:digits", n=5, max_rank=8)

    Every field of `RunSettings` (model, inputs, n, seed, layers, …) is an argument, and so is every option of the
    analysis, which ``ANALYSES[name].options`` lists. ``settings`` says the former at once; arguments take its place one
    by one.

    ``per`` asks for what is finer than a metric of a head, where an analysis has it (``ANALYSES[name].finer``): a row
    per "token" or per "pair", in columns and with options of their own.

        analyze("attention-map", model="bundled:digits-vit", inputs="bundled:digits", n=1, per="pair", query=0)

    Give a model with inputs, or ``qkv``, a file or capture holding q, k, v, or for an analysis of weights (its
    ``sites`` are empty) the model alone. Heads of grouped queries are those of the keys in analyses that read no
    queries. Only the sites the analysis reads are captured, ``batch_size`` inputs at a time, and a layer is measured
    and let go before the model runs the next, unless the analysis compares layers; rows come by layer, metric and input
    and do not depend on it. Analyses with the option ``per_head`` give means instead, unless it is set: rows per layer
    (``input`` and ``head`` null), per input (``layer`` and ``head`` null) and overall (all three null).

    ``progress`` shows a bar where the work takes longer than two seconds; a function in its place is called with the
    fraction that is done after every layer of every batch, lastly with 1.0. It stops the work by raising what it
    likes, which comes out here with the model as it was.

    ``cache`` keeps the result on disk by all that it depends on, and finds it there the next time (docs/cache.md); None
    does what the environment variable ``WORKBENCH_CACHE_RESULTS`` says (1 or 0), nothing unless it is set. With it a
    run that is interrupted and asked for again goes on after the layers that took longer than five seconds.

    ``frame.attrs["provenance"]`` holds what the numbers come from; ``frame.attrs["notes"]`` what a reader
    should know (layers left out, dead heads); `workbench.findings` puts the result in sentences.

    Raises `UnknownName` for an unknown analysis, option, model or layer, `InputError` for values that do not
    fit and rows that the analysis does not have, and what `load`, `inputs` and `capture` raise.
    """
    given = {key: asked.pop(key) for key in SETTINGS if key in asked}
    settings = replace(settings or RunSettings(), **given)
    analysis, options = find_analysis(name, asked, per)
    source = _source(analysis, options, settings, qkv)
    question = {
        "analysis": name,
        "per": per,
        "options": asdict(options),
        "seed": settings.seed,
        "settings": settings.recorded(),
    }
    entry = CacheEntry(source, _is_ours(name, options), question) if is_kept(cache) else None
    if entry is not None and (found := entry.find()) is not None:
        if callable(progress):
            progress(1.0)
        return found
    shown = (
        bar_of_fraction(analysis.title, source.size) if progress is True else nullcontext(progress or None)
    )
    with shown as tell:
        # rows finer than a metric are no measurements, and quickly made
        unfinished = None if entry is None or analysis.per is not None else entry.unfinished
        accumulated = accumulate(analysis, options, source, settings, tell, unfinished)
    frame = result_frame(analysis, options, source, settings, accumulated)
    return frame if entry is None else entry.keep(frame)


def is_kept(asked: bool | None) -> bool:
    """Whether to keep results: what was asked, or else what ``WORKBENCH_CACHE_RESULTS`` says; not by default."""
    if asked is not None:
        return bool(asked)
    said = os.environ.get("WORKBENCH_CACHE_RESULTS", "").strip().lower()
    if said in ("1", "true", "yes", "on"):
        return True
    if said in ("", "0", "false", "no", "off"):
        return False
    raise InputError(f"WORKBENCH_CACHE_RESULTS is 1 or 0, got {said!r}")


def _is_ours(name: str, options: Any) -> bool:
    """Whether the code of an analysis and of its nulls is all part of this package."""
    nulls = options.nulls if isinstance(options, OfValues) else ()
    return ANALYSES.is_ours(name) and all(SOURCES.is_ours(null) for null in nulls)


def _source(
    analysis: Analysis, options: Any, settings: RunSettings, qkv: str | Path | Capture | None
) -> Source:
    """What the analysis runs over; raises `InputError` where model, inputs and file do not go together."""
    if settings.heads is not None and not analysis.of_heads:
        raise InputError(f"{analysis.name} measures whole layers; leave out heads={settings.heads!r}")
    model, inputs = settings.model, settings.inputs
    if not analysis.sites:
        if model is None or inputs is not None or qkv is not None:
            raise InputError(
                f"{analysis.name} reads the weights of a model; give model alone, without inputs or qkv"
            )
        return weights_source(settings)
    if qkv is not None and model is None and inputs is None:
        if analysis.perturb is not None:
            raise InputError(
                f"{analysis.name} runs a model on perturbed inputs; give model and inputs, not a file"
            )
        if settings.n is not None:
            raise InputError(
                "n chooses among inputs, and a file of queries, keys and values is read whole; leave n out"
            )
        return file_source(qkv, analysis.reads(options), settings, analysis.of_steps)
    if qkv is not None or model is None or inputs is None:
        raise InputError("give model and inputs, or qkv (a file of queries, keys and values), and not both")
    return analysis_source(analysis, options, settings)


def result_frame(
    analysis: Analysis,
    options: Any,
    source: Source,
    settings: RunSettings,
    accumulated: Accumulator,
) -> pd.DataFrame:
    """The frame of what was measured, with its notes and provenance. Raises `InputError` where that is nothing."""
    if not accumulated:
        left_out = "; ".join(accumulated.layers_left_out())
        raise InputError(f"{analysis.name}: nothing to measure; {left_out}")
    wanted = parse_numbers("head", settings.heads) or ()
    absent = {head for head in wanted if head >= 0} - accumulated.heads
    if absent and accumulated.most_heads:
        raise InputError(f"there is no head {min(absent)}: heads are 0 to {accumulated.most_heads - 1}")
    model = source.model
    called = name_of_model(model)
    if analysis.per is None:
        frame = accumulated.frame(model=called, checkpoint=model.get("checkpoint"))
    else:
        frame = accumulated.finer_rows(called)
    notes = accumulated.notes()
    if is_random(model.get("checkpoint")):
        notes.append(f"{called} {UNTRAINED_NOTE}")
    notes += source.notes
    if analysis.per is None:
        notes += [*_silent_nulls(frame), *analysis.notes(_of_inputs(frame), options)]
    frame.attrs["notes"] = notes
    frame.attrs["provenance"] = shared(
        {
            "analysis": analysis.name,
            **({} if analysis.per is None else {"per": analysis.per}),
            "options": asdict(options),
            "model": model,
            "inputs": source.inputs,
            "seed": settings.seed,
            "settings": settings.recorded(),
            "notes": notes,
            "versions": versions(),
        }
    )
    return frame


def _of_inputs(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows as notes look at them: of single inputs, or where there are none their means in the place of one."""
    if frame["input"].notna().any() or not (frame["statistic"] == "std").any():
        return frame
    return frame[frame["statistic"] == "mean"].assign(input="mean", statistic=pd.NA)


def _silent_nulls(frame: pd.DataFrame) -> list[str]:
    """Which quantities have a null distribution of one value only: all null samples agree, and there is no z."""
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
