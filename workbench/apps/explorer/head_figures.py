"""The figures that the explorer exports, one for each view: of one head, one layer or one input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.apps.explorer.sentences import OPERANDS
from workbench.apps.explorer.token_panels import (
    Numbers,
    page,
    patch_panels,
    row_of_panels,
    with_images,
    word_panels,
)
from workbench.core.errors import InputError
from workbench.figures.composition import Axis, Panel, compose, round_up
from workbench.figures.frames import rows_of, short_name
from workbench.figures.grammar import Plot
from workbench.figures.head_maps import membership_scale
from workbench.figures.maps import is_masked, over_bars, squared
from workbench.figures.marks import At, Band, Line, Mark, Null, Rule, Series, key_entry
from workbench.figures.matrix_panels import (
    MOST_LABELS,
    asked_and_seen,
    compose_matrices,
    matrix_panel,
)
from workbench.figures.overlays import CHOSEN
from workbench.figures.scales import Scale, causal, masked_key
from workbench.figures.spectra import round_off
from workbench.figures.theme import COLOURS, theme_of
from workbench.figures.tokens import (
    TokenView,
    as_array,
    check_token,
    distinct,
    head_weights,
    not_finite,
    plain_view,
    text_view,
    view_tokens,
)

Images = np.ndarray | Sequence[np.ndarray | None] | None
_ENDS = ["null_mean", "null_low", "null_high"]
_SIDE = 345  # pixels, of the side of a matrix: the figure is 4.5 in high
_SMALLEST = 1e-5  # of σ_1: what single precision leaves of a captured attention matrix


# ---------------------------------------------------------------------------------------- attention from and to


def token_attention_figure(
    attn: Any, tokens: Any, token: int | None, image: np.ndarray | None = None, max_lines: int = 8
) -> go.Figure:
    """Draw a token's row and column of one head: where it attends, and what attends to it.

    Over a patch grid two maps beside the image, if any, with the class, distillation and register tokens
    as cells below, each with its number: the cells of the first panel add up to the row. Over a text the words
    in reading order as boxes; of a long text the part of ``max_lines`` lines that holds the chosen word. Padding is
    left out. Both panels share one scale from 0. Every cell and box carries its token's number
    as ``customdata``.

    Class attention, which has one query, has no second panel; nor has the mean over queries. A token that takes no part
    in the layer (the class token, where it joins the patches later) gives the mean over queries, with a note.

    Args:
        attn: attention weights of one head, (query, key), dimensionless; or (1, key).
        tokens: labels, kinds and grid of one input, as `workbench.captures.TokenInfo` holds them.
        token: number of the chosen token, counted as in ``tokens``; None is the mean over all queries but padding.
        image: height × width (× 3) array, uint8 or float in 0..1.

    Raises:
        InputError: attn is no (query, key) matrix of these tokens, or there is no such token.
    """
    weights = head_weights(attn)
    view = view_tokens(tokens, 0, weights.shape[1])
    token = check_token(token, tokens, 0)
    position = None if token is None else view.place(token)
    panels, notes = _from_and_to(weights, view, position)
    if token is not None and position is None:
        notes.append(f"{tokens.labels[0][token]} takes no part in this layer")
    notes += not_finite(weights)
    title = "Attention weight"
    if view.grid is not None:
        scale = Scale.of([panel.values for panel in panels], title)
        return patch_panels(view, with_images(panels, [image]), [scale], position, notes, most=True)
    visible = page(view, position, max_lines)
    if len(visible) < len(view.real):
        share = panels[0].values[visible].sum() / (panels[0].values.sum() or 1.0)
        notes.append(
            f"Tokens {visible[0]} to {visible[-1]} of {len(view.real)} are shown; they hold {100 * share:.0f} % of the "
            f"attention {panels[0].title.partition(':')[0]}."
        )
    hidden = bool(causal(weights).any()) and position is not None
    if hidden:
        notes.append("Grey letters: masked, since no query sees a later key. A dot is a space.")
    scale = Scale.of([panel.values[visible] for panel in panels], title)
    return word_panels(view, panels, visible, scale, position, notes, hidden)


def _from_and_to(
    weights: np.ndarray, view: TokenView, position: int | None
) -> tuple[list[Numbers], list[str]]:
    """Return the panels of a head's weights, and notes on them."""
    if len(weights) == 1 < weights.shape[1]:
        asks = view.labels[view.asking] if "class" in view.kinds else "the query"
        note = f"Class attention has one query, {asks}: nothing attends to the other tokens."
        return [Numbers(f"from {asks}: where it attends", f"from {asks} to", weights[0])], [note]
    if position is None:
        title, mean = f"from all {len(view.real)} tokens: where they attend", weights[view.real].mean(0)
        return [Numbers(title, "mean over queries, to", mean)], []
    name = view.names[position]
    return [
        Numbers(f"from {name}: where it attends", f"from {name} to", weights[position]),
        Numbers(f"to {name}: what attends to it", f"to {name} from", weights[:, position]),
    ], [f"Blue frame: {name}."]


# --------------------------------------------------------------------------------------------------- the matrix


def attention_matrix_figure(attn: Any, tokens: Any, token: int | None = None) -> go.Figure:
    """Draw attention of one head, query × key: padding left out, arrow heads at the chosen token's row and column.

    The axes name the tokens where there is room: words, patches as "row,column", and the class and register tokens;
    of more tokens the numbers, of a larger image the rows of patches. Colours run from 0 along a course of
    `workbench.figures.scales.course_of`. Keys that a causal head leaves out are masked, in another colour.
    ``customdata`` of a cell is [query, key], the numbers of both tokens.

    Args:
        attn: attention weights of one head, (query, key), dimensionless; or (1, key), of class attention.
        tokens: labels, kinds and grid of one input, as `workbench.captures.TokenInfo` holds them; of cross attention
            those of the queries, with those of the keys as their ``keys`` (from `Capture.tokens_of`).
        token: number of the chosen token, counted as in ``tokens``.

    Raises:
        InputError: attn is no (query, key) matrix of these tokens, or there is no such token.
    """
    others = getattr(tokens, "keys", None)
    weights = head_weights(attn, cross=others is not None)
    view = columns = view_tokens(tokens, 0, weights.shape[1 if others is None else 0])
    token = check_token(token, tokens, 0)
    if others is None:
        queries, keys = asked_and_seen(weights, view)
    else:
        columns = view_tokens(others, 0, weights.shape[1])
        queries, keys = view.real, columns.real
    matrix = weights[np.ix_(queries if len(weights) > 1 else [0], keys)]
    title = ", ".join(["Attention weight", *not_finite(matrix)]).rstrip(".")
    position, notes = None if token is None else view.place(token), []
    if position is not None:
        notes = _pointers(position, queries if len(queries) > 1 else [], "y")
        notes += _pointers(position, keys if others is None else [], "x", view.names[position])
    elif token is None and others is None and len(queries) > 1:
        most = keys[int(np.nan_to_num(matrix).mean(0).argmax())]
        notes = _pointers(most, keys, "x", f"most attention: {view.names[most]}")
    panel = replace(matrix_panel(matrix, view, queries, keys, columns=columns), notes=notes)
    if len(keys) > MOST_LABELS:  # few labels, which have room side by side
        panel = replace(panel, x=replace(panel.x, steep=False))
    return compose_matrices([panel], 1, Scale.of([matrix], title), most=_SIDE)


def _pointers(position: int, positions: list[int], axis: str, name: str = "") -> list[dict]:
    """Return an arrow head at the far end of a token's row or column, with its name above a column.

    A frame would cover cells of two pixels.
    """
    if position not in positions:
        return []
    arrow = {axis: positions.index(position), "font": {"color": CHOSEN}, "borderpad": 0}
    if axis == "y":
        return [{**arrow, "text": "◂", "x": 1, "xref": "domain", "xanchor": "left", "yanchor": "middle"}]
    above = {**arrow, "y": 1, "yref": "domain", "yanchor": "bottom"}
    left = 2 * positions.index(position) < len(positions)  # the name has room at the right
    beside = {"text": name, "xanchor": "left" if left else "right", "xshift": 6 if left else -6}
    return [{**above, "text": "▾", "xanchor": "center"}, *([above | beside] if name else [])]


# ------------------------------------------------------------------------------------------------------- compare


def difference_figure(
    first: Any,
    second: Any,
    names: tuple[str, str],
    tokens: tuple[Any, Any] = (None, None),
    image: Images = None,
    token: int | None = None,
) -> go.Figure:
    """Draw two attention maps on one scale from 0, and second − first on a symmetric scale, white at 0.

    Of an image, the attention from one token (the mean over queries without one) is drawn patch by patch; else the
    complete query × key matrices. Maps that do not fit each other, in their shapes, patch grids or words, stand
    side by side without a difference, with a note on the reason.

    Args:
        first: attention of one head, (query, key), or of one query, (key,); dimensionless.
        second: the same for the second map.
        names: what to call them.
        tokens: of each, labels, kinds and grid of one input, as `workbench.captures.TokenInfo` holds them.
        image: height × width (× 3) array, uint8 or float in 0..1, beside the maps; or a pair, one for each.
        token: number of the chosen token, counted as in ``tokens``.

    Raises:
        InputError: one of them is no attention of the tokens given for it, or there is no such token.
    """
    names = short_name(names[0]), short_name(names[1])
    weights = [as_array(part) for part in (first, second)]
    vectors = weights[0].ndim == 1
    weights = [head_weights(part[None] if part.ndim == 1 else part) for part in weights]
    counts = [part.shape[1] for part in weights]
    views = [
        plain_view(count) if info is None else view_tokens(info, 0, count)
        for count, info in zip(counts, tokens, strict=True)
    ]
    token_info = next((info for info in tokens if info is not None), None)
    token = token if token_info is None else check_token(token, token_info, 0)
    if reason := _unlike(weights, views, names):
        return _matrices(weights, views, names, [reason])
    position = None if token is None else views[0].place(token)
    notes = not_finite(np.stack(weights))
    if views[0].grid is not None and (image is not None or vectors):
        return _maps(weights, views[0], names, image, position, notes)
    return _matrices(weights, views, names, notes, weights[1] - weights[0])


def _unlike(weights: Sequence[np.ndarray], views: Sequence[TokenView], names: tuple[str, str]) -> str:
    """Return the reason why no difference can be taken; empty where it can."""
    if weights[0].shape != weights[1].shape:
        shapes = [" × ".join(map(str, part.shape)) for part in weights]
        return f"No difference: {names[0]} is {shapes[0]}, {names[1]} is {shapes[1]}."
    if views[0].grid != views[1].grid:
        return f"No difference: their patch grids differ, {views[0].grid} and {views[1].grid}."
    if views[0].kinds != views[1].kinds or (views[0].grid is None and views[0].labels != views[1].labels):
        return "No difference: their tokens are not the same."
    return ""


def _scales(maps: Sequence[np.ndarray], change: np.ndarray | None, title: str) -> list[Scale]:
    """Return the scale of both maps, and that of their difference where there is one."""
    scales = [Scale.of(maps, title)]
    return scales if change is None else [*scales, Scale.of([change], "difference", middle=0.0)]


def _maps(
    weights: Sequence[np.ndarray], view: TokenView, names: tuple[str, str], image: Images, position: int | None,
    notes: list[str],
) -> go.Figure:  # fmt: skip
    if len(weights[0]) == 1:
        rows, whence = [part[0] for part in weights], f"from {view.labels[view.asking]}"
    elif position is None:
        rows, whence = [part.mean(0) for part in weights], "mean over queries"
    else:
        rows, whence = [part[position] for part in weights], f"from {view.names[position]} (blue frame)"
    change = rows[1] - rows[0]
    panels = [Numbers(name, f"{name}, {whence} to", row) for name, row in zip(names, rows, strict=True)]
    panels.append(Numbers(f"{names[1]} − {names[0]}", "difference, at", change, "coloraxis2"))
    images = [image] if image is None or isinstance(image, np.ndarray) else [*image]
    first, last = images[0], images[-1]
    if first is not None and last is not None and np.array_equal(first, last):
        images = [first]
    scales = _scales(rows, change, f"Attention weight, {whence}")
    return patch_panels(view, with_images(panels, images), scales, position, notes)


def _matrices(
    weights: Sequence[np.ndarray],
    views: Sequence[TokenView],
    names: tuple[str, str],
    notes: list[str],
    change: np.ndarray | None = None,
) -> go.Figure:
    drawn = [*zip(names, weights, views, strict=True)]
    if change is not None:
        drawn.append((f"{names[1]} − {names[0]}", change, views[0]))
    side, gap, rest = row_of_panels(len(drawn))
    panels = []
    for number, (name, matrix, view) in enumerate(drawn):
        queries, keys = asked_and_seen(matrix, view)
        part = matrix[np.ix_(queries if len(matrix) > 1 else [0], keys)]
        scale = "coloraxis2" if number == 2 else "coloraxis"
        panels.append(matrix_panel(part, view, queries, keys, name, scale=scale))
    maps = [panel.traces[0].z for panel in panels]
    scales = _scales(maps[:2], None if change is None else maps[2], "Attention weight")
    masked = [masked_key()] if any(map(is_masked, panels)) else []
    tall = side if max(map(len, maps)) > 1 else 2.5 * theme_of("page").font
    fig = over_bars(
        panels, len(panels), scales, key=masked, gap=gap, before={0: rest}, right=rest, notes=notes,
        inner=0.8 * tall, shared="" if change is None else "y",
    )  # fmt: skip
    return squared(fig) if max(map(len, maps)) > 1 else fig


# ------------------------------------------------------------------------------------------ norms, memberships


def token_norms_figure(norms: Mapping[str, Any], tokens: Any, image: np.ndarray | None = None) -> go.Figure:
    """Draw L2 norms of one head's operands: a map each over a patch grid, bars each over a text.

    All maps share one scale from 0; the class and register tokens stand below with their numbers. A text's padding is
    left out. ``customdata`` of a cell or bar is its token's number.

    Args:
        norms: operand ("q", "k", "v", or another name) to (token,) norms, in the unit of the operand; a single query,
            as class attention has, is that of the class token; one norm per patch is that of the patches.
        tokens: labels, kinds and grid of one input, as `workbench.captures.TokenInfo` holds them.
        image: height × width (× 3) array, uint8 or float in 0..1.

    Raises:
        InputError: norms that are not one per token.
    """
    lengths = {name: as_array(values) for name, values in norms.items()}
    view = view_tokens(tokens, 0, max(map(len, lengths.values())))
    by_token = {name: np.full(len(view.index), np.nan) for name in lengths}
    for name, values in lengths.items():
        by_token[name][view.places(len(values))] = values
    if view.grid is None:
        return _bars(by_token, view)
    panels = [Numbers(OPERANDS.get(name, name), f"‖{name}‖ of", values) for name, values in by_token.items()]
    scale = Scale.of([*by_token.values()], f"L2 norm {', '.join(f'‖{name}‖' for name in by_token)}")
    return patch_panels(view, with_images(panels, [image]), [scale])


def _bars(norms: Mapping[str, np.ndarray], view: TokenView) -> go.Figure:
    """Draw a row of bars per operand, one below another, with the words at the foot."""
    real = view.real
    words = distinct([view.labels[position] for position in real])
    x = Axis("", -0.5, len(real) - 0.5, names=tuple(words), steep=True, more={"type": "category"})
    panels = []
    for number, (name, values) in enumerate(norms.items()):
        bars = go.Bar(
            x=words, y=values[real], marker={"color": COLOURS[number % len(COLOURS)], "line": {"width": 0}},
            customdata=[view.index[position] for position in real], name=f"‖{name}‖", showlegend=False,
            hovertemplate=f"‖{name}‖ of %{{x}}<br>%{{y:.4g}}<extra></extra>",
        )  # fmt: skip
        highest = float(np.nanmax(values[real], initial=0.0))
        panels.append(Panel([bars], x, Axis(f"‖{name}‖", 0, round_up(highest))))
    return compose(panels, 1, width="page", shared="x", inner=7 * theme_of("page").font)


def token_membership_figure(
    frame: pd.DataFrame,
    head: int | None = None,
    token: int | None = None,
    max_heads: int = 4,
    max_lines: int = 4,
) -> go.Figure:
    """Draw the words of a text as boxes, a block for each head: the membership of each token in the head.

    Over all heads the memberships of a token add up to 1. All blocks share the colours of
    `workbench.figures.membership_figure`. Of many heads and of a long text those parts are shown that hold the chosen
    head, whose name is bold, and the chosen token, whose boxes have a heavy frame. Every box carries its token's number
    as ``customdata``.

    Args:
        frame: the result of ``membership`` per token, for one text, model and layer.
        head: number of the chosen head.
        token: number of the chosen token, as the frame has it.
    """
    head_numbers = sorted(frame["head"].unique().tolist())
    before = head_numbers.index(head) // max_heads * max_heads if head in head_numbers else 0
    heads = head_numbers[before : before + max_heads]
    by_head = {number: frame[frame["head"] == number].sort_values("token") for number in heads}
    first = by_head[heads[0]]
    view = text_view(first["token"].tolist(), first["label"].tolist(), first["kind"].tolist())
    position = None if token is None else view.place(token)
    visible = page(view, position, max_lines)
    notes = [
        f"{name} {part[0]} to {part[-1]} of {count} are shown."
        for name, part, count in (
            ("Heads", heads, len(head_numbers)),
            ("Tokens", [view.index[here] for here in visible], len(view.real)),
        )
        if len(part) < count
    ]
    if "·" in view.labels:
        notes.append("A dot is a space.")
    panels = [
        Numbers(
            f"<b>head {number}</b>" if number == head else f"head {number}",
            f"in head {number}",
            by_head[number]["value"].to_numpy(),
        )
        for number in heads
    ]
    return word_panels(view, panels, visible, membership_scale(frame, "Membership Π"), position, notes)


# ------------------------------------------------------------------------------------------------------- spectra


def head_spectrum_figure(frame: pd.DataFrame, layer: int) -> go.Figure:
    """Draw Gram eigenvalues of one head against rank, on a log axis: one layer thick, the others thin behind it.

    Others go from dark for the first to light for the last. A null distribution of the layer is drawn as a grey band.
    Lines are medians over the inputs. Values at or below rounding (N ε λ₁) are drawn there.

    Args:
        frame: the result of ``gram-spectrum`` for one head of one model (rows of ``eigenvalue``, or of
            ``eigenvalue_share``), with option ``null_samples`` for the null distribution.
        layer: number of the layer that is drawn thick.

    Raises:
        InputError: no positive eigenvalue.
    """
    metric = "eigenvalue" if (frame["metric"] == "eigenvalue").any() else "eigenvalue_share"
    rows = rows_of(frame, metric, needs=("layer", "rank"))
    floor = round_off(rows)
    lost = (rows["value"] <= floor).any()
    ends = [name for name in _ENDS if name in rows]
    rows = rows.assign(**rows[["value", *ends]].clip(lower=floor))
    rows[ends] = rows[ends].where(rows["layer"] == layer)
    marks: list[Mark] = [Null(words=f"Gaussian keys, layer {layer}"), _OneThick(layer=layer)]
    marks += [Rule(floor, "round-off")] if lost else []
    of_90 = frame.loc[(frame["metric"] == "rank_90") & (frame["layer"] == layer), "value"]
    if len(of_90) == 1:
        marks.append(At(float(of_90.iloc[0]), "rank of 90 %"))
    plot = Plot(rows, x="rank", color="layer").metric(metric).add(*marks)
    return plot.scale(y_log=True, x_log=2).figure("page")


@dataclass(frozen=True)
class _OneThick(Line):
    """Thin lines of medians below the thick one of a layer."""

    estimator: Any = "median"
    markers: bool = False
    layer: int = 0

    def together(self, panel: Sequence[Series]) -> Iterator[go.Scatter]:
        front = str(self.layer)
        for series in sorted(panel, key=lambda series: series.group == front):
            width, opacity = (3, 1) if series.group == front else (1.2, 0.8)
            for trace in super().together([series]):
                yield trace.update(line={"width": width}, opacity=opacity)

    def key(self, drawn: Sequence[Series], style: dict[str, Any]) -> Iterator[go.Scatter]:
        front = next(series for series in drawn if series.group == str(self.layer))
        line = {**front.style["line"], "width": 3}
        yield key_entry(f"layer {self.layer}, {self._words(front)}", mode="lines", line=line)


def singular_values_figure(values: Any) -> go.Figure:
    """Draw singular values of one head's attention against rank, on a log axis, with two ranks marked.

    The effective rank is exp(−Σ p log p) with p = σ / Σ σ; the other is the smallest rank at which the squares hold
    90 % of their sum. Both are of all values; those below 1e-5 of the largest are drawn there.

    Args:
        values: (rank,) singular values, dimensionless, in any order.

    Raises:
        InputError: not one spectrum of finite values, at least one of them positive.
    """
    sigma = as_array(values)
    if sigma.ndim != 1 or not np.isfinite(sigma).all() or (sigma < 0).any() or not sigma.any():
        raise InputError(
            f"singular values are (rank,), finite and not all zero; got shape {sigma.shape}: choose one head"
        )
    sigma = np.sort(sigma)[::-1]
    floor = _SMALLEST * sigma[0]
    p = sigma[sigma > 0] / sigma.sum()
    effective = float(np.exp(-(p * np.log(p)).sum()))
    holding = int(np.argmax(np.cumsum(sigma**2) / np.sum(sigma**2) >= 0.9)) + 1
    rows = pd.DataFrame({
        "metric": "singular_value", "rank": np.arange(1, len(sigma) + 1), "value": np.maximum(sigma, floor),
    })  # fmt: skip
    marks: list[Mark] = [
        Line(markers=False, words="σ<sub>r</sub> of the head's attention"),
        At(effective, "effective rank"),
        At(holding, "rank of 90 %", dash="dot"),
    ]
    marks += [Rule(floor, "round-off")] if (sigma <= floor).any() else []
    return Plot(rows, x="rank").metric("singular_value").add(*marks).scale(y_log=True).figure()


def trajectory_figure(frame: pd.DataFrame, layer: int) -> go.Figure:
    """Draw mean cosine of tokens and their coding rate against the layer, side by side; a line marks one layer.

    A line per model, the mean over inputs between their quartiles (see `workbench.figures.Band`), the null distribution
    in grey where the frame has it. A metric that the frame lacks has no panel.

    Args:
        frame: the results of ``token-similarity`` and ``coding-rate``, joined.
        layer: number of the layer that is marked.
    """
    present = [name for name in ("token_cosine", "coding_rate") if (frame["metric"] == name).any()]
    plot = Plot(frame).metric(*present).where(axis=None, standardize=None).scale(y_zero=True)
    return plot.add(Null(), Band(quantiles=(25, 75)), Line(), At(layer, f"layer {layer}")).figure("page")
