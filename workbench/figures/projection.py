"""Projection error and the two norms it compares, by layer and through training."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.options import checked
from workbench.figures.estimates import NULL_COLUMNS, at_level, input_count, null_of_means
from workbench.figures.frames import rows_of, series_labels
from workbench.figures.grammar import Plot
from workbench.figures.marks import NOISE, Band, Line, Null, Rule
from workbench.figures.specification import SERIES
from workbench.frames.estimate import with_means

_BOUNDS = ("projection_zero_predictor", "projection_floor")
FLOOR = "floor: true projections"
SHARE = "Exact J over ‖φ‖²"
_NEAR = 0.02  # of the zero predictor: a curve that lies on its line


@checked
def projection_error_figure(frame: pd.DataFrame) -> go.Figure:
    """Exact projection error over the zero predictor's by layer, between 1 and its floor, over its null distribution.

    The floor is the error of the true projections, the least there can be; 1 explains nothing. A panel per model; those
    within 2 % of the zero predictor in every layer are left out, unless all are.

    Args:
        frame: the result of the analysis projection-error. With per_head each input has a ratio, so that one of large
            norm does not outweigh the others; the mean of these has a 95 % CI over inputs.

    Raises:
        InputError: no projection errors by layer.
    """
    drawn = projection_shares(frame)
    names = {"exact": "output", FLOOR: "floor", SHARE: "Exact error J over<br>the zero predictor's"}
    plot = Plot(drawn, color="quantity", panel=SERIES, names=names).metric(SHARE)
    plot = plot.scale(y_log={SHARE: _is_wide(drawn)}, x_free=True, y_zero=True)
    many = f"{n} inputs" if (n := input_count(frame)) else "inputs"
    line = Line(words=f"mean over {many} and heads")
    width = "page" if drawn[SERIES].nunique() > 1 else "column"
    spread = Band(over="input", bars=True)
    return plot.add(Null("gaussian", "noise for V"), spread, Rule(1, column="zero"), line).figure(width)


def projection_shares(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what `projection_error_figure` draws: by series and layer, error and floor over the zero predictor's."""
    rows = rows_of(frame, ["projection_error", *_BOUNDS], needs=("layer",))
    single = rows[rows[["input", "layer", "head"]].notna().all(axis=1)]
    rows = single if len(single) else at_level(rows, "layer")
    rows = rows.assign(series=series_labels(rows))
    shares = _input_shares(rows) if len(single) else _share_of_zero_predictor(rows, [SERIES, "layer"])
    means = shares[shares["input"].isna()] if "input" in shares else shares
    far = shares[SERIES].isin(means.loc[means["value"] < 1 - _NEAR, SERIES])
    shares = shares[far | ~far.any()]
    shares.attrs = frame.attrs
    return shares


def _is_wide(drawn: pd.DataFrame) -> bool:
    """Return whether the error of a V of large norm exceeds that of nothing so far that it needs a log axis."""
    means = drawn[drawn["input"].isna()] if "input" in drawn else drawn
    return bool((means.loc[means["metric"] == SHARE, "value"] > 10).any())


def _input_shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the exact error of each head, input and layer over the zero predictor's of that input and layer.

    The rows have single inputs and heads. Appended are means with the null of the mean, and the floor's.
    """
    places, ends = ["model", SERIES, "layer", "input"], ["value", "null_mean", "null_low", "null_high"]
    zero = rows[rows["metric"] == "projection_zero_predictor"].groupby(places)["value"].mean()
    shares = rows.assign(zero=zero.reindex(pd.MultiIndex.from_frame(rows[places])).to_numpy())
    shares[ends] = shares[ends].div(shares["zero"], axis=0)
    exact = shares[(shares["convention"] == "exact") & (shares["null"] == "gaussian")]
    exact = with_means(exact[[*places, "head", "metric", "null", *ends]], places[:3]).assign(quantity="exact")
    floor = shares[shares["metric"] == "projection_floor"].groupby(places[:3])["value"].mean()
    both = pd.concat([exact, floor.reset_index().assign(quantity=FLOOR)], ignore_index=True)
    return null_of_means(both).assign(metric=SHARE, zero=1.0)


def _share_of_zero_predictor(rows: pd.DataFrame, by: str | list[str]) -> pd.DataFrame:
    """Exact error with its null distribution, and floor, over the zero predictor's error at each place of ``by``.

    Columns ``by``, metric, quantity, value, the null's, and ``zero``, 1. Empty without a zero predictor.
    """
    zero = rows[rows["metric"] == "projection_zero_predictor"].groupby(by, sort=False)["value"].first()
    exact = rows[(rows["metric"] == "projection_error") & (rows["convention"] == "exact")]
    ends = [name for name in ("value", "null_mean", "null_low", "null_high") if name in rows]
    shares = {
        "exact": exact.groupby(by, sort=False)[ends].mean(),
        FLOOR: rows[rows["metric"] == "projection_floor"].groupby(by, sort=False)[["value"]].first(),
    }
    parts = pd.concat([values.div(zero, axis=0).assign(quantity=name) for name, values in shares.items()])
    return parts.dropna(subset="value").reset_index().assign(metric=SHARE, null="gaussian", zero=1.0)


_PHI, _H, _ERROR = "‖φ‖²", "‖h‖²", "J"
_SQUARED = "Squared norm"
_NORMS = {"phi_norm2": _PHI, "h_norm2": _H}


@checked
def projection_training_figure(
    frames: Mapping[str, pd.DataFrame], epochs: Mapping[str, float] | None = None, unit: str = "Epoch"
) -> go.Figure:
    """Projection error and norms over the checkpoints of a model (teo2024 Fig. 1; saritas2025 Figs 1 and 4).

    Two panels against the epoch: the exact error over the zero predictor's, mean ‖φ‖², with the first batch's floor and
    null; both norms. Medians and quartiles over inputs (see `Band`): single ones have a ‖φ‖² that rules any mean.
    The floor, and other batches, are medians only.

    Args:
        frames: batch (train, test, …) to the joined result of projection-error over checkpoints, without per_head; the
            first is drawn with solid lines, the second dashed and with crosses.
        epochs: checkpoint to epoch; by default ``frame.attrs["epochs"]``.
        unit: what those are, as the axis says it: of a watched training steps.

    Raises:
        InputError: no batch, a checkpoint without an epoch, or a frame without these values.
    """
    if not frames:
        raise InputError("no batch to draw; give {'train': frame, 'test': frame}")
    parts = []
    for number, (batch, frame) in enumerate(frames.items()):
        epoch_numbers = epochs if epochs is not None else frame.attrs.get("epochs", {})
        rows = rows_of(frame, ["projection_error", *_NORMS, *_BOUNDS], needs=("checkpoint",))
        unknown = sorted(set(rows["checkpoint"].dropna()) - set(epoch_numbers))
        if unknown:
            raise InputError(f"no epoch is known for checkpoint {', '.join(unknown)}; give epochs=")
        rows = rows.assign(epoch=rows["checkpoint"].map(dict(epoch_numbers)).astype(float), batch=batch)
        single = rows[rows["input"].notna() & rows["layer"].isna() & rows["head"].isna()]
        plain = single.drop(columns=NULL_COLUMNS)
        for metric, quantity in _NORMS.items():
            selected = plain[(plain["metric"] == metric) & (plain["statistic"] == "mean")]
            if number:
                selected = selected.groupby("epoch")["value"].median().reset_index().assign(batch=batch)
            parts.append(
                selected.assign(metric=_SQUARED, quantity=quantity, convention=pd.NA, statistic=pd.NA)
            )
        shares = _share_of_zero_predictor(single, ["epoch", "input"]).assign(batch=batch)
        exact = shares["quantity"] == "exact"
        others = (
            shares[exact] if number else shares[~exact]
        )  # without an interval, which would hide the null's
        parts.append(others.groupby(["epoch", "metric", "quantity", "batch"])["value"].median().reset_index())
        parts += [shares[exact]] if number == 0 else []
    drawn = pd.concat([part for part in parts if len(part)], ignore_index=True)
    drawn = drawn.drop(columns=["model", "checkpoint"])
    if drawn.empty:
        raise InputError("the frames hold no projection errors of single inputs")
    drawn = drawn.replace({"quantity": {"exact": _ERROR}})
    drawn.attrs = next(iter(frames.values())).attrs  # whose null distribution is drawn
    many = drawn.groupby("batch")["input"].nunique().max()
    names = {_ERROR: _ERROR, FLOOR: "floor", _PHI: _PHI, _H: _H}
    names |= {batch_name: f"{batch_name} batch" for batch_name in frames}
    plot = Plot(drawn, x="epoch", color="quantity", dash="batch", names=names)
    metrics = [name for name in (SHARE, _SQUARED) if (drawn["metric"] == name).any()]
    logs = {_SQUARED: True, SHARE: _is_wide(drawn)}
    plot = plot.metric(*metrics).scale(x_title=unit, y_log=logs, y_cut=True)
    return plot.add(
        Null(words=f"{NOISE}, {next(iter(frames))} batch", estimator="median"),
        Band(over="input", quantiles=(25, 75), words=f"IQR over inputs, {next(iter(frames))} batch"),
        Line("median", words=f"median over {many} inputs"),
        Rule(column="zero", name="zero predictor"),
    ).figure("page", columns=2, labels="ends")
