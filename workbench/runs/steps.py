"""``analyze_steps``: an analysis of every step of a loop that runs a model, as denoising does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from torch import nn

from workbench.analyses.registry import find_analysis
from workbench.captures import Capture, capture_steps
from workbench.core.errors import InputError
from workbench.core.options import Numbers
from workbench.frames.results import STEP, conform, join_frames
from workbench.runs.analyze import analyze


def analyze_steps(
    name: str,
    model: nn.Module,
    run: Callable[[], Any],
    *,
    steps: Numbers = None,
    layers: Numbers = None,
    heads: Numbers = None,
    seed: int = 0,
    **asked: Any,
) -> pd.DataFrame:
    """Call ``run``, and analyse ``model`` each time it runs meanwhile: a tidy frame with the column ``step``.

        analyze_steps("attention-map", pipeline.transformer, lambda: pipeline("a cat", num_inference_steps=8))

    Steps are those of `workbench.captures.capture_steps`; those of one step are held at a time. ``asked`` are options
    of the analysis. ``frame.attrs["times"]`` has the time that the model was given, by step.

    Raises `InputError` for analyses of weights or of perturbed inputs, and what `capture_steps` and `analyze` raise.
    """
    analysis, options = find_analysis(name, asked, None)
    if not analysis.sites or analysis.perturb is not None:
        raise InputError(f"{name} reads weights or perturbs inputs, which is nothing of a step; use analyze")
    frames: list[pd.DataFrame] = []

    def measure(step: int, captured: Capture) -> None:
        frame = analyze(name, qkv=captured, heads=heads, seed=seed, **asked)
        named = conform(frame.assign(**{STEP: step}))
        named.attrs = frame.attrs
        frames.append(named)

    sites = tuple(dict.fromkeys((*analysis.reads(options), *analysis.also)))
    taken = capture_steps(model, run, steps=steps, layers=layers, sites=sites, each=measure)
    if not frames:
        raise InputError(f"none of the steps asked for was run; the model ran {taken.count} times")
    frame = join_frames(frames)
    frame.attrs["times"] = dict(zip(taken.numbers, taken.times, strict=True))
    return frame
