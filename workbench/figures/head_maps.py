"""Maps of heads over images, of class attention and of memberships, and class attention word by word over a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.options import checked
from workbench.figures.attention import MAX_TOKENS
from workbench.figures.composition import Axis, Panel, compose, round_up
from workbench.figures.frames import model_label
from workbench.figures.maps import Maps, add_scale
from workbench.figures.marks import key_entry
from workbench.figures.matrix_panels import SMALL
from workbench.figures.overlays import need_columns
from workbench.figures.scales import Scale, bar_room
from workbench.figures.theme import COLOURS, GREY, WIDTH, theme_of
from workbench.figures.tokens import distinct, readable_label

_COLUMNS = (
    "model", "input", "layer", "candidate", "head", "query", "key", "label", "kind", "row", "column", "value",
)  # fmt: skip
_SOURCE = 'workbench.analyze("class-attention", …, per="token")'
_MEMBERSHIPS = ("model", "layer", "input", "head", "kind", "row", "column", "value")
_ROLLOUT = "rollout, all layers"
_TOGETHER = ("mean", "rollout")  # maps that are of no single head
_EVEN = {"color": GREY, "dash": "4px,3px", "width": WIDTH.fine}


@checked
def class_attention_figure(frame: pd.DataFrame, images: Sequence[np.ndarray] | None = None) -> go.Figure:
    """A row per input: the image, then what each head gives to the patches, their mean, and the rollout.

    Models and layers stand side by side; all maps share one colour scale. Cells are the model's patches, as they are
    (wu2025 Figs 5 and 10; abdullaev2025 Figs 4 and 6).

    Args:
        frame: the result of ``class-attention`` per token, for images, of one or several models on the same inputs;
            keep the layers, heads and candidates to be shown.
        images: an image per input, in the order of the frame; by default maps only.

    Raises:
        InputError: the frame holds texts or lacks a column, layers differ in their patch grids, or images and inputs
            in their number.
    """
    need_columns(frame, _COLUMNS, _SOURCE)
    patches = frame[frame["kind"] == "patch"]
    if patches.empty:
        kinds = ", ".join(sorted(frame["kind"].unique()))
        raise InputError(
            f"there are no patches to map: the tokens are {kinds}; `class_attention_text_figure` shows texts"
        )
    title = f"Attention weight, from the {_whose(patches)}"
    return head_maps(patches.assign(head=_which(patches)), images, title)


@checked
def membership_figure(
    frame: pd.DataFrame, images: Sequence[np.ndarray] | None = None, names: Mapping[str, str] | None = None
) -> go.Figure:
    """A row per input: the image, then the membership map of every head, layer by layer (wu2025 Figs 4b and 9).

    Colours are the same for models with equally many heads: from 0 to 1, white for 1 / heads, with the square root
    of the distance from it, since memberships of a trained ToST lie near it. Cells are the model's patches.

    Args:
        frame: the result of ``membership`` per token, for images, of one or several models on the same inputs.
        images: an image per input, in the order of the frame; by default maps only.
        names: words at the left of the rows, by input; by default none beside images.

    Raises:
        InputError: the frame holds texts or lacks a column, layers differ in their patch grids, or images and inputs
            in their number.
    """
    need_columns(frame, _MEMBERSHIPS, 'workbench.analyze("membership", …, per="token")')
    patches = frame[frame["kind"] == "patch"]
    if patches.empty:
        raise InputError("there are no patches to map; the explorer shows memberships of texts")
    return head_maps(patches, images, "", names, scale=membership_scale(patches, "Membership Π"))


def membership_scale(frame: pd.DataFrame, title: str) -> Scale:
    """Return colours of memberships from 0 to 1, on both sides of 1 / heads."""
    heads = frame["head"].nunique()
    if abs(frame["value"].mean() * heads - 1) > 0.01:  # not of all heads: 1 / heads is not the mean
        return Scale.of([frame["value"]], title, ends=(0.0, 1.0), course="linear")
    words = f"{title} (uniform: 1 / {heads})"
    return Scale.of([frame["value"]], words, ends=(0.0, 1.0), course="root", middle=1 / heads)


def head_maps(
    frame: pd.DataFrame,
    images: Sequence[np.ndarray] | None,
    title: str,
    rows: Mapping[str, str] | None = None,
    **more: Any,
) -> go.Figure:
    """`Maps` of the heads, model by model and layer by layer, a row per input."""
    heads = len(set(frame["head"].unique()) - {*_TOGETHER})
    names = {"rollout": "rollout", "mean": f"mean of {heads} heads" if heads > 1 else "mean of the heads"}
    names |= rows or {}
    labels = {model: model_label(frame, model) for model in frame["model"].unique()}
    names |= {
        model: label.replace("?", " ?").replace("&", " &") for model, label in labels.items()
    }  # to break lines
    columns = ("model", "layer", "head")
    return Maps(frame, cols=columns, images=images, title=title, names=names, **more).figure()


def _which(frame: pd.DataFrame) -> pd.Categorical:
    """Return the map of each row, in order: the number of a head, mean, rollout."""
    heads = sorted(frame["head"].dropna().unique())
    names = frame["head"].astype(object).where(frame["head"].notna(), frame["candidate"])
    return pd.Categorical(names, [*heads, *_TOGETHER]).remove_unused_categories()


def _whose(frame: pd.DataFrame) -> str:
    """The query in words."""
    words = {"class": "class token", "last": "last token", "first": "first token", "mean": "mean query"}
    return " or ".join(words[query] for query in dict.fromkeys(frame["query"]))


@checked
def class_attention_text_figure(frame: pd.DataFrame, max_tokens: int = MAX_TOKENS) -> go.Figure:
    """Word by word: for each layer the mean over heads as bars, and below it a line of words for every head.

    All heads share one colour scale. The dashed line is uniform attention, where the query sees all tokens.

    Args:
        frame: the result of ``class-attention`` per token, for one text and one model.
        max_tokens: the text's first tokens are shown.

    Raises:
        InputError: the frame lacks a column, or holds several texts or models.
    """
    need_columns(frame, _COLUMNS, _SOURCE, alternatives=("model", "input"))
    key_count = frame["key"].nunique()
    first_keys = frame[frame["key"].isin(sorted(frame["key"].unique())[: max(max_tokens, 1)])]
    tokens = first_keys.drop_duplicates("key").sort_values("key")
    cut = f" (first {len(tokens)} of {key_count} tokens)" if len(tokens) < key_count else ""
    labels = [readable_label(label) for label in tokens["label"]]
    places = distinct(labels)
    small = {"type": "category", "tickfont": {"size": SMALL * theme_of("page").font}}
    x = Axis(
        f"key{cut}", -0.5, len(labels) - 0.5, names=tuple(places), labels=tuple(labels), more=small,
        steep=max(map(len, labels)) > 1,
    )  # fmt: skip
    even = 1 / key_count if set(frame["query"]) <= {"class", "last"} else None  # these see every token
    font = theme_of("page").font
    panels, heights, drawn = [], [], []
    for layer in dict.fromkeys(first_keys["layer"]):
        lines = _lines(first_keys[first_keys["layer"] == layer])
        mean = lines.pop("mean")
        bars = go.Bar(
            x=places, y=mean, marker={"color": COLOURS[0], "line": {"width": 0}}, name=f"layer {layer}, mean",
            showlegend=False, hovertemplate="to %{x}<br>%{y:.4f}<extra></extra>",
        )  # fmt: skip
        level = {"type": "line", "x0": 0, "x1": 1, "xref": "domain", "y0": even, "y1": even, "line": _EVEN}
        words = f"Mean weight<br>({len(lines) - (_ROLLOUT in lines)} heads)"
        top = Axis(words, 0, round_up(max(*mean, even or 0)))
        panels.append(Panel([bars], x, top, f"layer {layer}", shapes=[] if even is None else [level]))
        cells = go.Heatmap(
            z=[*lines.values()], x=places, y=[*lines], coloraxis="coloraxis", name=f"layer {layer}",
            hovertemplate="%{y}<br>to %{x}<br>%{z:.4f}<extra></extra>",
        )  # fmt: skip
        named = Axis("", len(lines) - 0.5, -0.5, names=tuple(lines), more={"type": "category"})
        panels.append(Panel([cells], x, named))
        heights += [6.5 * font, 1.35 * font * len(lines)]
        drawn += [*lines.values()]
    rollout = " or rollout" if "rollout" in set(frame["candidate"]) else ""
    scale = Scale.of(drawn, f"Attention weight{rollout}, from the {_whose(frame)}")
    key = (
        [key_entry(f"uniform attention, 1 / {key_count}", mode="lines", line=_EVEN)]
        if even is not None
        else []
    )
    room = bar_room(scale, sum(heights), font, 2)
    fig = compose(panels, 1, key, width="page", shared="x", right=room, inner=heights)
    return add_scale(fig, scale, font)


def _lines(rows: pd.DataFrame) -> dict[str, list[float]]:
    """The values of a layer by title, each token by token."""
    titles = {"mean": "mean", "rollout": _ROLLOUT}
    lines = rows.sort_values("key").assign(line=_which).groupby("line", observed=True)["value"]
    return {titles.get(name, f"head {name}"): weights.tolist() for name, weights in lines}
