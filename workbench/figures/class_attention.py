"""What the class token attends to: over images, word by word over a text, and as measures by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.attention import MAX_TOKENS
from workbench.figures.frames import model_label, rows_of
from workbench.figures.layer_marks import layer_marks_figure
from workbench.figures.maps import Maps
from workbench.figures.overlays import need_columns, shared_scale
from workbench.figures.theme import GREY, series_style

COLUMNS = (
    "model",
    "input",
    "layer",
    "candidate",
    "head",
    "query",
    "key",
    "label",
    "kind",
    "row",
    "column",
    "value",
)
SOURCE = 'workbench.analyze("class-attention", …, per="token")'
MEASURES = ("class_attention_entropy_share", "class_attention_spread", "class_attention_diversity")
ON_MASKS = "class_attention_mask"
_TOGETHER = ("mean", "rollout")  # maps that are of no single head
BARS = 70  # px, the panel of the mean
LINE = 15  # px, a head's row of words


def class_attention_figure(frame: pd.DataFrame, images: Sequence[np.ndarray] | None = None) -> go.Figure:
    """A row per input: the image, then what each head gives to the patches, their mean, and the rollout.

    Models and layers stand side by side; all maps share one colour scale, and lie over the faded image. Cells are the
    model's patches, as they are (wu2025 Figs 5 and 10; abdullaev2025 Figs 4 and 6).

    Args:
        frame: the result of ``class-attention`` per token, for images, of one or several models on the same inputs;
            keep the layers, heads and candidates to be shown.
        images: an image per input, in the order in which the frame names them first; without, maps alone.

    Raises:
        InputError: the frame holds texts or lacks a column, layers differ in their patch grids, or images and inputs
            in their number.
    """
    need_columns(frame, COLUMNS, SOURCE)
    patches = frame[frame["kind"] == "patch"]
    if patches.empty:
        found = ", ".join(sorted(frame["kind"].unique()))
        raise InputError(
            f"there are no patches to map: the tokens are {found}; `class_attention_text_figure` shows texts"
        )
    return head_maps(patches.assign(head=_which(patches)), images, f"Attention of the {_whose(patches)}")


def head_maps(frame: pd.DataFrame, images: Sequence[np.ndarray] | None, title: str, **more: Any) -> go.Figure:
    """`Maps` of the heads, model by model and layer by layer, a row per input."""
    names = {name: name for name in _TOGETHER} | {
        model: model_label(frame, model) for model in frame["model"].unique()
    }
    columns = ("model", "layer", "head")
    return Maps(frame, cols=columns, under=images, title=title, names=names, **more).figure()


def _which(frame: pd.DataFrame) -> pd.Categorical:
    """What each row's map is of, in order: the number of a head, mean, rollout."""
    heads = sorted(frame["head"].dropna().unique())
    own = frame["head"].astype(object).where(frame["head"].notna(), frame["candidate"])
    return pd.Categorical(own, [*heads, *_TOGETHER]).remove_unused_categories()


def _whose(frame: pd.DataFrame) -> str:
    """The query in words."""
    words = {"class": "class token", "last": "last token", "first": "first token", "mean": "mean query"}
    return " or ".join(words[query] for query in dict.fromkeys(frame["query"]))


def class_attention_text_figure(frame: pd.DataFrame, max_tokens: int = MAX_TOKENS) -> go.Figure:
    """Word by word: for each layer the mean over heads as bars, and beneath it a line of words for every head.

    All heads share one colour scale. The dotted line is even attention, where the query sees all tokens.

    Args:
        frame: the result of ``class-attention`` per token, for one text and one model.
        max_tokens: the text's first tokens are shown.

    Raises:
        InputError: the frame lacks a column, or holds several texts or models.
    """
    need_columns(frame, COLUMNS, SOURCE)
    for column in ("model", "input"):
        if frame[column].nunique() > 1:
            raise InputError(f"{frame[column].nunique()} {column}s do not fit one figure; keep one of them")
    whole = frame["key"].nunique()
    shown = frame[frame["key"].isin(sorted(frame["key"].unique())[: max(max_tokens, 1)])]
    tokens = shown.drop_duplicates("key").sort_values("key")
    labels, places = tokens["label"].tolist(), list(range(len(tokens)))
    layers = list(dict.fromkeys(shown["layer"]))
    by_layer = {layer: _lines(shown[shown["layer"] == layer]) for layer in layers}
    heights = [part for lines in by_layer.values() for part in (BARS, LINE * max(len(lines) - 1, 1))]
    margin = {"l": 52, "r": 62, "t": 18, "b": 26 + round(5.2 * max(map(len, labels)))}
    gap = 18
    inner = sum(heights) + gap * (len(heights) - 1)
    fig = make_subplots(
        len(heights),
        1,
        shared_xaxes="all",
        row_heights=heights,
        vertical_spacing=gap / inner,
        subplot_titles=[title for layer in layers for title in (f"layer {layer}", "")],
    )
    for number, (layer, lines) in enumerate(by_layer.items()):
        mean = lines.pop("mean")
        fig.add_trace(
            go.Bar(
                x=places,
                y=mean,
                marker={"color": series_style(0)["line"]["color"]},
                customdata=labels,
                name=f"layer {layer}, mean",
                showlegend=False,
                hovertemplate="to %{customdata}<br>%{y:.4f}<extra></extra>",
            ),
            row=2 * number + 1,
            col=1,
        )
        if set(frame["query"]) <= {"class", "last"}:  # these see every token
            even = {"color": GREY, "dash": "dot", "width": 1}
            fig.add_hline(
                1 / whole,
                line=even,
                row=2 * number + 1,
                col=1,
                annotation_text="even",
                annotation_position="top right",
            )
        fig.update_yaxes(title_text="Mean", rangemode="tozero", nticks=4, row=2 * number + 1, col=1)
        fig.add_trace(
            go.Heatmap(
                z=list(lines.values()),
                x=places,
                y=list(lines),
                coloraxis="coloraxis",
                customdata=[labels] * len(lines),
                name=f"layer {layer}",
                hovertemplate="%{y}<br>to %{customdata}<br>%{z:.4f}<extra></extra>",
            ),
            row=2 * number + 2,
            col=1,
        )
        fig.update_yaxes(autorange="reversed", type="category", row=2 * number + 2, col=1)
    cut = f" (first {len(labels)} of {whole} tokens)" if len(labels) < whole else ""
    fig.update_xaxes(tickvals=places, showticklabels=False, ticklen=2)
    fig.update_xaxes(
        ticktext=labels, tickangle=-90, tickfont={"size": 7 / 0.75}, showticklabels=True, title_text=f"to{cut}",
        row=len(heights),
    )  # fmt: skip
    fig.update_annotations(font={"size": None})
    highest = max(float(np.max(list(lines.values()))) for lines in by_layer.values())
    fig.update_layout(
        coloraxis=shared_scale(None, highest, f"Attention of the {_whose(frame)}"),
        margin=margin,
        height=round(inner + margin["t"] + margin["b"]),
    )
    return fig


def _lines(rows: pd.DataFrame) -> dict[str, list[float]]:
    """The values of a layer by title, each token by token."""
    which = _which(rows)
    return {
        one if one in _TOGETHER else f"head {one}": rows[which == one].sort_values("key")["value"].tolist()
        for one in which.categories
    }


def class_attention_summary_figure(
    frame: pd.DataFrame, metrics: Sequence[str] = (*MEASURES, ON_MASKS)
) -> go.Figure:
    """How evenly and how widely heads attend, how different they are, and what falls on masks: by layer and model.

    Marks are means over heads and inputs; grey, 95 % of the same mean with the masks' patches permuted.

    Args:
        frame: the result of ``class-attention`` of one or several models, with ``single`` for 95 %
            confidence intervals over inputs.
        metrics: a panel for each of these that the frame holds.

    Raises:
        InputError: the frame holds none of them.
    """
    rows = frame[frame["candidate"].isna() | (frame["candidate"] == "head")]
    rows = rows_of(rows, metrics)
    return layer_marks_figure(rows, [name for name in metrics if (rows["metric"] == name).any()])
