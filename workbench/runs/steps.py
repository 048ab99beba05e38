"""``analyze_steps``: an analysis of every step of a loop that runs a model, such as denoising."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from torch import nn

from workbench.analyses.registry import find_analysis
from workbench.captures import Capture, capture_steps
from workbench.core.errors import InputError
from workbench.core.options import Numbers, checked, parse_numbers
from workbench.frames.results import STEP, conform, join_frames
from workbench.runs import settings as setting
from workbench.runs.analyze import run_analysis
from workbench.runs.settings import RunSettings


@checked
def analyze_steps(
    analysis: str,
    model: nn.Module,
    run: Callable[[], Any],
    *,
    steps: Numbers = None,
    layers: Numbers = None,
    heads: Numbers = None,
    seed: setting.Seed = 0,
    **options: Any,
) -> pd.DataFrame:
    """Call ``run``, and analyse ``model`` each time it runs meanwhile: a tidy frame with the column ``step``.

        analyze_steps("attention-map", pipeline.transformer, lambda: pipeline("a cat", num_inference_steps=8))

    ``steps`` are those of `workbench.captures.capture_steps`; those of one step are held at a time. Settings and
    options are those of `analyze`. ``frame.attrs["times"]`` maps each step to the time that the model received.

    Raises `InputError` for analyses of weights or of perturbed inputs, and what `capture_steps` and `analyze` raise.
    """
    entry, chosen = find_analysis(analysis, options, None)
    if not entry.sites or entry.perturb is not None:
        raise InputError(f"{analysis} reads weights or perturbs inputs, which have no steps; use analyze")
    parse_numbers("layer", layers)
    settings = RunSettings(heads=heads, seed=seed)
    frames: list[pd.DataFrame] = []

    def measure(step: int, captured: Capture) -> None:
        frame = run_analysis(analysis, settings, options, qkv=captured)
        named = conform(frame.assign(**{STEP: step}))
        named.attrs = frame.attrs
        frames.append(named)

    sites = tuple(dict.fromkeys((*entry.reads(chosen), *entry.also)))
    taken = capture_steps(model, run, steps=steps, layers=layers, sites=sites, each=measure)
    if not frames:
        raise InputError(f"none of the steps asked for was run; the model ran {taken.count} times")
    frame = join_frames(frames)
    frame.attrs["times"] = dict(zip(taken.numbers, taken.times, strict=True))
    return frame
