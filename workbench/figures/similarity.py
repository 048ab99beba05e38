"""How alike tokens become with depth."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.figures.frames import (
    LEGEND_ABOVE,
    axis_title,
    band,
    legend_rows,
    null_traces,
    rows_of,
    series_of,
    spread,
    whole_numbers,
)
from workbench.figures.theme import COLUMN, series_style, translucent

HIDDEN = "resid_post"
SITES = {"input": "attention's input", "resid_mid": "after attention", HIDDEN: "after the block"}
# metric, standardize, axis, title: a row of panels each
_ROWS = (
    ("token_cosine", None, None, "mean cosine"),
    ("token_cosine", None, "without special tokens", "mean cosine<br>without special tokens"),
    ("token_cosine", "without mean", None, "mean cosine<br>without mean token"),
    ("effective_rank", None, None, "effective rank"),
)


def similarity_depth_figure(
    frame: pd.DataFrame, metric: str = "token_cosine", relative: bool = False
) -> go.Figure:
    """Mean pairwise cosine of tokens against layer: a line per model, a band for the interquartile range of the inputs.

    The line is the mean over inputs. Of a frame without rows per input the band is mean ± standard deviation. Where the
    frame carries a null, the null distribution is drawn as a grey band with a dotted line. Of a frame of several
    sites that after the block is drawn, with all its tokens.

    Args:
        frame: rows of `metric` with columns layer and value, one per input.
        metric: any metric that has layers and no ranks.
        relative: depth as a share of the model's own layers, to compare models of different depth.

    Raises:
        InputError: no such rows, or a missing column.
    """
    rows = depth_rows(frame, metric)
    series = series_of(rows)
    fig = go.Figure()
    for index, (label, part) in enumerate(series):
        last = max(int(part["layer"].max()), 1)
        part = part.assign(depth=part["layer"].astype(float) / (last if relative else 1))
        line = {"name": label, "showlegend": len(series) > 1, **series_style(index)}
        fig.add_traces(depth_traces(part, "depth", line, show_null=index == 0))
    fig.update_yaxes(title_text=axis_title(metric), range=depth_range(rows, metric))
    if relative:
        fig.update_xaxes(title_text="Depth (share of layers)")
    else:
        fig.update_xaxes(title_text="Layer", **whole_numbers(int(rows["layer"].max()) + 1))
    top = 10 + (18 * legend_rows(fig, COLUMN) if len(series) > 1 else 0)
    fig.update_layout(
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        margin={"l": 44, "r": 8, "t": top, "b": 38},
        height=180 + top,
    )
    return fig


def depth_rows(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Rows of a metric by layer; of several sites those after the block, with all tokens as they are."""
    rows = rows_of(frame, metric, needs=("layer",))
    of_site = rows["candidate"].isna() | (rows["candidate"] == HIDDEN)
    return rows[of_site & rows["layer"].notna() & rows["axis"].isna() & rows["standardize"].isna()]


def depth_range(rows: pd.DataFrame, metric: str) -> list[float]:
    """From where to where the axis of these values reaches."""
    drawn = rows[rows["statistic"].isna() | (rows["statistic"] == "mean")]["value"]
    lowest, highest = drawn.min(), drawn.max()
    if metric == "token_cosine":
        # The scale always shows 0 and 1, between which the papers' claims lie.
        lowest, highest = min(lowest, 0.0), max(highest, 1.0)
    pad = 0.04 * ((highest - lowest) or 1.0)
    return [lowest - pad, highest + pad]


def depth_traces(
    part: pd.DataFrame, by: str, line: dict, show_null: bool = True, **more: str
) -> list[go.Scatter]:
    """One model through depth: the mean in the style ``line``, the interquartile range, the null in grey."""
    level = _level(part, by)
    traces = null_traces(part, by, show=show_null, **more)
    if (level["high"] > level["low"]).any():
        colour = translucent(line["line"]["color"], 0.18)
        traces.append(band(level[by], level["low"], level["high"], colour, **more))
    mean = go.Scatter(
        x=level[by],
        y=level["mean"],
        mode="lines+markers",
        hovertemplate=f"{line['name']}<br>%{{x}}: %{{y:.3f}}<extra></extra>",
        **line,
        **more,
    )
    return [*traces, mean]


def similarity_sites_figure(frame: pd.DataFrame) -> go.Figure:
    """Mean cosine and effective rank of tokens by layer, at the attention's input, after attention and after the block.

    A column per site; rows for the mean cosine of all tokens, without special tokens and without the mean token, and
    for the effective rank: those that the frame holds. A line per model, the mean over inputs, with a band for their
    interquartile range (without rows per input: mean ± standard deviation); the null distribution in grey.

    Args:
        frame: the result of ``token-similarity`` with ``sites`` "all", of one or several models.

    Raises:
        InputError: the frame holds no cosines by site.
    """
    rows = rows_of(frame, ("token_cosine", "effective_rank"), needs=("layer", "candidate"))
    rows = rows[rows["layer"].notna()]
    models = list(dict.fromkeys(label for label, _ in series_of(rows.assign(standardize=pd.NA))))
    panels = [(title, part) for title, part in _panels(rows) if not part.empty]
    fig = make_subplots(
        len(panels),
        len(SITES),
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.025,
        vertical_spacing=0.12 / len(panels),
        column_titles=list(SITES.values()),
    )
    for line, (title, of_row) in enumerate(panels, start=1):
        for column, site in enumerate(SITES, start=1):
            place = {"row": line, "col": column}
            for label, part in series_of(of_row[of_row["candidate"] == site].assign(standardize=pd.NA)):
                style = series_style(models.index(label))
                for trace in null_traces(part, "layer", show=line == column == 1 and label == models[0]):
                    fig.add_trace(trace, **place)
                level = _level(part, "layer")
                if (level["high"] > level["low"]).any():
                    shade = translucent(style["line"]["color"], 0.14)
                    fig.add_trace(band(level["layer"], level["low"], level["high"], shade), **place)
                fig.add_trace(
                    go.Scatter(
                        x=level["layer"],
                        y=level["mean"],
                        mode="lines+markers",
                        name=label,
                        legendgroup=label,
                        showlegend=line == column == 1,
                        hovertemplate=f"{label}, {site}<br>layer %{{x}}: %{{y:.3f}}<extra></extra>",
                        **style,
                    ),
                    **place,
                )
        fig.update_yaxes(title_text=title, row=line, col=1)
    fig.update_xaxes(**whole_numbers(int(rows["layer"].max()) + 1))
    fig.update_xaxes(title_text="Layer", row=len(panels))
    fig.update_annotations(font={"size": None})
    top = 24 + 18 * legend_rows(fig)
    fig.update_layout(
        height=top + 118 * len(panels) + 36, legend=LEGEND_ABOVE, margin={"l": 62, "r": 8, "t": top, "b": 36}
    )
    return fig


def _panels(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for metric, standardize, axis, title in _ROWS:
        own = rows[rows["metric"] == metric]
        own = own[own["axis"].isna() if axis is None else (own["axis"] == axis).fillna(False)]
        how = own["standardize"]
        yield title, own[how.isna() if standardize is None else (how == standardize).fillna(False)]


def _level(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Mean and band at each place of `by`: quartiles over inputs, or of a frame without inputs mean ± deviation."""
    if rows["statistic"].isna().all():
        return spread(rows, by)
    table = rows.pivot_table(index=by, columns="statistic", values="value", dropna=False)
    mean, half = table["mean"], table["std"]
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half}).reset_index()
