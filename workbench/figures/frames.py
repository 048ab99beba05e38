"""Rows and labels of result frames, and how a metric's spread and null distribution are drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.figure_arguments import check_arguments, check_frame, check_numbers
from workbench.figures.words import embedded_model
from workbench.frames.results import is_random, name_of_model, random_seed

UNTRAINED = "(random weights)"


def rows_of(frame: pd.DataFrame, metrics: str | Iterable[str], needs: Iterable[str] = ()) -> pd.DataFrame:
    """The rows of one or several metrics that hold a value.

    Raises `InputError` where there are none, or where a column in `needs` is absent or empty.
    """
    wanted = [metrics] if isinstance(metrics, str) else list(metrics)
    check_frame(frame, "metric", "value", *needs)
    check_numbers(frame["value"])
    chosen = frame[frame["metric"].isin(wanted) & frame["value"].notna()]
    if frame["metric"].isin(wanted).any() and chosen.empty:
        raise InputError(
            f"all values of {' or '.join(wanted)} are NaN; frame.attrs['notes'] lists the reasons"
        )
    if chosen.empty:
        present = ", ".join(sorted(frame["metric"].dropna().unique())) or "none"
        raise InputError(f"the frame holds no values of {' or '.join(wanted)}; its metrics: {present}")
    for column in needs:
        if chosen[column].isna().all():
            raise InputError(
                f"column {column!r} is empty for {' and '.join(wanted)}: the figure has no axis to use"
            )
    return chosen


def without_provenance(frame: pd.DataFrame) -> pd.DataFrame:
    """The same rows without the record of their run, which pandas copies for every column that is taken."""
    check_frame(frame)
    plain = frame.copy(deep=False)
    plain.attrs = {}
    return plain


def short_name(model: object) -> str:
    """A model as a legend shows it: without the scheme, `bundled:digits-vit` to `digits-vit`."""
    text = "" if pd.isna(model) else str(model)
    scheme, _, rest = text.partition(":")
    return (rest if rest and scheme.isalpha() else text).rstrip("/").rsplit("/", 1)[-1]


def legend_names(models: Iterable[object]) -> dict[object, str]:
    """Return models as a legend shows them: without scheme, and without options unless these tell two models apart."""
    names = {model: short_name(model) for model in models}
    plain = {model: name.partition("?")[0] for model, name in names.items()}
    counts = Counter(plain.values())
    return {model: name if counts[plain[model]] > 1 else plain[model] for model, name in names.items()}


def of_weights(model: object, checkpoint: object) -> str:
    """Return the name of a spec's file of weights, without folder and suffix; "" for a named model or none."""
    file = PurePath("" if pd.isna(checkpoint) or ":" not in str(model) else str(checkpoint))
    return file.stem if file.suffix in (".pth", ".pt", ".ckpt", ".bin", ".safetensors") else ""


def with_labels(text: str, runs: Iterable[Mapping[str, Any]]) -> str:
    """Return a text with the models of its runs as legends show them: a file of weights, no options."""
    models = [run.get("model") or {} for run in runs]
    specs = {name_of_model(model): model.get("checkpoint") for model in models if name_of_model(model)}
    for spec, name in legend_names(specs).items():
        text = text.replace(str(spec), of_weights(spec, specs[spec]) or name)
    return text


def model_label(frame: pd.DataFrame, model: object) -> str:
    """A model as a legend or title shows it: its file of weights or its name, marked where the weights are random."""
    if "checkpoint" in frame:
        checkpoints = set(frame.loc[frame["model"] == model, "checkpoint"])
    else:
        runs = frame.attrs.get("provenance") or []
        models = [run.get("model") for run in ([runs] if isinstance(runs, dict) else runs)]
        checkpoints = {
            model_record.get("checkpoint")
            for model_record in models
            if isinstance(model_record, dict) and name_of_model(model_record) == model
        }
    name = legend_names({model, *(frame["model"].unique() if "model" in frame else ())})[model]
    file = of_weights(model, *checkpoints) if len(checkpoints) == 1 else ""
    return (embedded_model(name) or file or name) + (
        f" {UNTRAINED}" if checkpoints and all(map(is_random, checkpoints)) else ""
    )


def series_labels(frame: pd.DataFrame) -> pd.Series:
    """Return the label of each row's series: its model, checkpoint and way of standardising.

    The checkpoint is named where it varies within a model or is random, standardisation where there is any.
    """
    names = ["model", "checkpoint", "standardize"]
    columns = {name: frame[name].astype("string").fillna("") if name in frame else "" for name in names}
    keyed = frame.assign(**columns).reset_index(drop=True)
    checkpoints = keyed.groupby("model")["checkpoint"].nunique()
    models = legend_names(keyed["model"].unique())
    labels = pd.Series("", index=keyed.index, dtype=object)
    for _, rows in keyed.groupby(names, sort=False):
        model, checkpoint, standardize = rows[names].iloc[0]
        file = of_weights(model, checkpoint)
        state = file or checkpoint if checkpoints[model] > 1 else ""
        if is_random(checkpoint):
            state = (
                f"({checkpoint} weights)" if checkpoints[model] > 1 and random_seed(checkpoint) else UNTRAINED
            )
        words = (
            embedded_model(models[model]) or (not state and file) or models[model],
            state,
            f"({standardize})" if standardize else "",
        )
        labels[rows.index] = " ".join(filter(None, words))
    return labels.set_axis(frame.index)


def model_pages(frame: pd.DataFrame, most: int) -> list[pd.DataFrame]:
    """Parts of a frame with at most `most` models each, so that a figure of many models fits its pages."""
    check_frame(frame, "model")
    check_arguments(most=most)
    models = list(dict.fromkeys(frame["model"]))
    return [frame[frame["model"].isin(models[first : first + most])] for first in range(0, len(models), most)]


def page_name(name: str, page: int) -> str:
    """Return the name of a figure's page: the name for the first (1), then NAME_2, NAME_3."""
    return name if page == 1 else f"{name}_{page}"


def band(x: Iterable, low: Iterable, high: Iterable, colour: str) -> go.Scatter:
    """A filled band between two curves, closed into one polygon so that it does not depend on trace order."""
    x, low, high = list(x), list(low), list(high)
    look = {"fill": "toself", "fillcolor": colour, "mode": "lines", "line": {"width": 0, "color": colour}}
    return go.Scatter(x=x + x[::-1], y=high + low[::-1], **look, hoverinfo="skip", showlegend=False)
