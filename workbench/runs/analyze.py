"""``analyze``: one named analysis over a model and its inputs, or over a file of q, k, v, as a tidy frame."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analyses.null_values import SOURCES
from workbench.analyses.registry import ANALYSES, Analysis, OfValues, Per, check_request, find_analysis
from workbench.captures import Capture
from workbench.core.errors import InputError, NothingToMeasure
from workbench.core.null_distributions import ROUNDING
from workbench.core.options import Numbers, checked, parse_numbers
from workbench.core.progress import bar_of_fraction
from workbench.frames.measurement import Accumulator
from workbench.frames.provenance import versions
from workbench.frames.results import UNTRAINED_NOTE, is_random, name_of_model, shared
from workbench.runs import settings as setting
from workbench.runs.cache import CacheEntry
from workbench.runs.loop import (
    Source,
    accumulate,
    analysis_source,
    capture_inputs,
    file_source,
    weights_source,
)
from workbench.runs.settings import RunSettings

__all__ = ["ANALYSES", "analyze", "capture_inputs", "check_request", "result_frame"]


@checked
def analyze(
    analysis: str,
    model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None,
    *,
    n: setting.Count | None = None,
    seed: setting.Seed = 0,
    layers: Numbers = None,
    heads: Numbers = None,
    order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None,
    dtype: setting.DType | None = None,
    name: str | None = None,
    per: Per | None = None,
    qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False,
    cache: bool | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Run one analysis and return its tidy frame, one row per number (columns: `workbench.frames.results.COLUMNS`).

        analyze("gram-spectrum", "bundled:digits-vit", "bundled:digits", n=5, max_rank=8)

    Give a model with inputs; or ``qkv``, a file or capture of queries, keys and values; or the model only, for an
    analysis of weights (its ``sites`` are empty).

    analysis: One of `ANALYSES`.
    model: The model: timm:NAME, hf:REPO-OR-FOLDER, tost:SIZE, crate:SIZE, bundled:NAME, file:CHECKPOINT,
        py:MODULE:FUNCTION or a name that `workbench models` lists; with options and weights:
        NAME?KEY=VALUE@CHECKPOINT. Also a loaded or wrapped model (`load`, `wrap`), or any torch module.
    inputs: The inputs: bundled:NAME, images:FOLDER, imagenet:FOLDER, text:FILE or wikitext-103. Also the result of
        `workbench.inputs`, a list that it takes (texts, images), or a batch of tensors.
    n: How many inputs, or all. [default: 25, or all where there are fewer] Only for inputs given by name.
    seed: Random seed; also chooses the inputs.
    layers: Layers, from 0: 0,3-5 or -1. [default: all] Text such as "0,3-5", a number, or several.
    heads: Heads, from 0: 0,2. [default: all] As layers.
    order: Draw the inputs at random, or take the first in the file or folder. [default: random; file for a list]
    preprocessing: The model's own preprocessing of images, or that of saritas2025 for every model.
    batch_size: Inputs per forward pass; does not change the numbers.
    device: The device: cpu, cuda, cuda:1, mps … [default: WORKBENCH_DEVICE, or cpu]
    dtype: The type of the weights: float32, bfloat16, float16. [default: as stored]
    name: Name of the model in the result. [default: its spec or class]
    per: Return finer rows, where the analysis has them (``ANALYSES[analysis].finer``): one per "token" or "pair" (query
        and key). They have other columns and options.
    progress: Show a bar if the work takes longer than two seconds. A function is called with the fraction done after
        every layer of every batch, and with 1.0 at the end; any exception it raises stops the work and is raised here,
        with the model as it was.
    cache: Keep the result on disk under everything it depends on, and read it the next time (docs/cache.md); an
        interrupted run resumes after the layers that took longer than five seconds. [default:
        WORKBENCH_CACHE_RESULTS, 1 or 0, else not]
    options: Options of the analysis, which ``ANALYSES[analysis].options`` lists.

    Heads of grouped queries are those of the keys in analyses that read no queries. Only the sites the analysis reads
    are captured, ``batch_size`` inputs at a time. A layer is measured and released before the model runs the next,
    unless the analysis compares layers. Rows come by layer, metric and input. Analyses with the option ``per_head``
    return means unless it is set: rows per layer (``input`` and ``head`` null), per input (``layer`` and ``head`` null)
    and overall (all three null).

    ``frame.attrs["provenance"]`` records what the numbers depend on; ``frame.attrs["notes"]`` lists what a reader
    should know (skipped layers, dead heads); `workbench.findings` summarises the result in sentences.

    Raises `UnknownName` for an unknown analysis, option, model or layer; `InputError` for values that do not fit,
    missing model or inputs, and rows that the analysis does not have; and what `load`, `inputs` and `capture` raise.
    """
    settings = RunSettings(
        model, inputs, n, seed, layers, heads, order, preprocessing, batch_size, device, dtype, name
    )
    return run_analysis(analysis, settings, options, per=per, qkv=qkv, progress=progress, cache=cache)


def run_analysis(
    name: str,
    settings: RunSettings,
    options: Mapping[str, Any],
    *,
    per: Per | None = None,
    qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False,
    cache: bool | None = None,
) -> pd.DataFrame:
    """Run one analysis as `analyze` does, with its settings in one object."""
    analysis, chosen = find_analysis(name, options, per)
    source = _source(analysis, chosen, settings, qkv)
    question = {
        "analysis": name,
        "per": per,
        "options": asdict(chosen),
        "seed": settings.seed,
        "settings": settings.recorded(),
    }
    entry = CacheEntry(source, _is_ours(name, chosen), question) if is_kept(cache) else None
    if entry is not None and (cached := entry.find()) is not None:
        if callable(progress):
            progress(1.0)
        return cached
    bar = bar_of_fraction(analysis.title, source.size) if progress is True else nullcontext(progress or None)
    with bar as report:
        # rows finer than a metric are no measurements, and quickly made
        unfinished = None if entry is None or analysis.per is not None else entry.unfinished
        accumulated = accumulate(analysis, chosen, source, settings, report, unfinished)
    frame = result_frame(analysis, chosen, source, settings, accumulated)
    return frame if entry is None else entry.keep(frame)


def is_kept(cache: bool | None) -> bool:
    """Return whether to keep results: ``cache``, else the value of ``WORKBENCH_CACHE_RESULTS``, else False."""
    if cache is not None:
        return bool(cache)
    value = os.environ.get("WORKBENCH_CACHE_RESULTS", "").strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("", "0", "false", "no", "off"):
        return False
    raise InputError(f"WORKBENCH_CACHE_RESULTS is 1 or 0, got {value!r}")


def _is_ours(name: str, options: Any) -> bool:
    """Whether the code of an analysis and of its nulls is all part of this package."""
    nulls = options.nulls if isinstance(options, OfValues) else ()
    return ANALYSES.is_ours(name) and all(SOURCES.is_ours(null) for null in nulls)


def _source(
    analysis: Analysis, options: Any, settings: RunSettings, qkv: str | Path | Capture | None
) -> Source:
    """The source of an analysis; raises `InputError` where model, inputs and file do not go together."""
    if settings.heads is not None and not analysis.of_heads:
        raise InputError(f"{analysis.name} measures whole layers; leave out heads={settings.heads!r}")
    model, inputs = settings.model, settings.inputs
    if not analysis.sites:
        if model is None or inputs is not None or qkv is not None:
            raise InputError(
                f"{analysis.name} reads the weights of a model; give the model only, without inputs or qkv"
            )
        return weights_source(settings)
    missing = [name for name, value in (("model", model), ("inputs", inputs)) if value is None]
    if qkv is None:
        if missing:
            raise InputError(
                f"{analysis.name} runs a model over inputs; got no {' and no '.join(missing)}: give both, as in "
                f'analyze("{analysis.name}", "bundled:digits-vit", "bundled:digits"), or qkv=FILE (queries, keys and '
                "values)"
            )
        return analysis_source(analysis, options, settings)
    if len(missing) < 2:
        raise InputError("qkv replaces a model and its inputs; give model and inputs, or qkv, not both")
    if analysis.perturb is not None:
        raise InputError(
            f"{analysis.name} runs a model on perturbed inputs; give model and inputs, not a file"
        )
    if settings.n is not None:
        raise InputError(
            "n chooses among inputs, and a file of queries, keys and values is read whole; leave n out"
        )
    return file_source(qkv, analysis.reads(options), settings, analysis.of_steps)


def result_frame(
    analysis: Analysis,
    options: Any,
    source: Source,
    settings: RunSettings,
    accumulated: Accumulator,
) -> pd.DataFrame:
    """Return the frame of all measurements, with notes and provenance; raises `NothingToMeasure` if there are none."""
    if not accumulated:
        left_out = "; ".join(accumulated.layers_left_out())
        raise NothingToMeasure(f"{analysis.name}: nothing to measure; {left_out}")
    wanted = parse_numbers("head", settings.heads) or ()
    absent = {head for head in wanted if head >= 0} - accumulated.heads
    if absent and accumulated.most_heads:
        raise InputError(f"there is no head {min(absent)}: heads are 0 to {accumulated.most_heads - 1}")
    model = source.model
    model_name = name_of_model(model)
    if analysis.per is None:
        frame = accumulated.frame(model=model_name, checkpoint=model.get("checkpoint"))
    else:
        frame = accumulated.finer_rows(model_name)
    notes = accumulated.notes()
    if is_random(model.get("checkpoint")):
        notes.append(f"{model_name} {UNTRAINED_NOTE}")
    notes += source.notes
    if analysis.per is None:
        notes += [*_silent_nulls(frame), *analysis.notes(_of_inputs(frame), options)]
    frame.attrs["notes"] = notes
    if frame["value"].isna().all():
        reasons = "; ".join(notes)
        warnings.warn(f"{analysis.name}: every value is undefined (NaN): {reasons}", stacklevel=5)
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
    """The rows that notes are about: those of single inputs, else their means as one input."""
    if frame["input"].notna().any() or not (frame["statistic"] == "std").any():
        return frame
    return frame[frame["statistic"] == "mean"].assign(input="mean", statistic=pd.NA)


def _silent_nulls(frame: pd.DataFrame) -> list[str]:
    """Which quantities have a null distribution of one value only: all null samples agree, and there is no z."""
    drawn = frame[frame["null_low"].notna()]
    if drawn.empty:
        return []
    labels = ["metric", "axis", "statistic", "convention", "candidate", "null"]
    ends = drawn[["null_low", "null_high"]]
    ranges = (ends["null_high"] - ends["null_low"]) > ROUNDING * ends.abs().max(axis=1)
    moves = drawn["z"].notna() | ranges
    moved = moves.groupby([drawn[label] for label in labels], dropna=False, sort=False).any()
    silent = [
        f"{' '.join(str(part) for part in quantity if pd.notna(part))} ({null})"
        for *quantity, null in moved.index[~moved]
    ]
    return [f"no z, since all null samples agree: {', '.join(silent)}"] if silent else []
