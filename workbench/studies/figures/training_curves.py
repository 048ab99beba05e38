"""Training of several attention variants: their curves, and what the curves come to, beside the softmax baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError, UnknownName
from workbench.figures.grammar import Plot
from workbench.figures.marks import NOISE, Band, Interval, Line, Null, Published, Rule, Stroke, Text
from workbench.figures.variants import in_order, look_of

# metric of a training record → what its axis says, factor, logarithmic
_AXES = {
    "accuracy": ("accuracy (%)", 100, False),
    "loss": ("loss (nats)", 1, True),
    "perplexity": ("perplexity", 1, True),
    "projection_error": ("J, mean over layers", 1, True),
    "projection_error_last": ("J, last layer", 1, True),
    "h_norm2": ("‖h‖², mean over layers", 1, True),
    "h_norm2_last": ("‖h‖², last layer", 1, True),
    "phi_norm2": ("‖φ(q)‖², mean over layers", 1, True),
    "phi_norm2_last": ("‖φ(q)‖², last layer", 1, True),
}
_BASELINE = "softmax"
_OTHER = "rpc-sym"  # whose look stands for every variant where each has a panel of its own
# what training comes to → title of its panel; {} is the accuracy whose epoch is given
_ENDS = {
    "accuracy": "Accuracy at<br>the end (%)",
    "loss": "Loss at the<br>end (nats, log)",
    "perplexity": "Perplexity of a<br>character at the end",
    "mean_loss": "Mean loss of<br>all epochs (nats)",
    "epochs_to_threshold": "Epochs to<br>{} % accuracy",
}
# metric of a paper → what it is, and how a row says it beside its baseline's
_PRINTED = {
    "accuracy_top1": ("ImageNet-1K top-1", "{:.1%} ({:.1%})"),
    "perplexity": ("word perplexity", "{:.1f} ({:.1f})"),
    "cross_entropy": ("loss of a token", "{:.2f} ({:.2f}) nats"),
}
_SCALED = ["value", "low", "high", "reference", "floor", "null_low", "null_high"]


def variant_curves_figure(
    frame: pd.DataFrame,
    metric: str = "loss",
    split: str = "test",
    first: int = 0,
    baselines: Mapping[str, str] | None = None,
) -> go.Figure:
    """A metric against the epoch, a panel per variant with the curve of its baseline behind it.

    Medians over seeds, bands from least to largest. Losses, perplexities, errors and norms that span more than a decade
    are on logarithmic axes.

    Args:
        frame: rows of `training_record` with one model per variant of attention.
        metric: of the record.
        split: "test" or "train".
        first: the epoch to begin with, where the first ones would hide all differences later.
        baselines: model → its baseline; softmax attention by default. Another is named in the panel's title.

    Raises:
        InputError: no such rows, or two models with the same attention.
        UnknownName: a metric that has no axis here, or a variant without a look.
    """
    words, factor, log = _axis(metric)
    rows = frame[(frame["split"] == split) & (frame["metric"] == metric) & frame["value"].notna()]
    order = _one_model_each(rows, f"the frame has no {split} {metric}")
    rows = rows[rows["epoch"] >= first].assign(value=lambda own: own["value"] * factor)
    medians = rows.groupby(["attention", "epoch"])["value"].median()
    others = [name for name in order if name != _BASELINE] or order
    attention = dict(zip(rows["model"], rows["attention"], strict=True))
    pairs = [(model, base) for model, base in (baselines or {}).items() if {model, base} <= set(attention)]
    behind = {attention[model]: attention[base] for model, base in pairs}
    names, parts = {_OTHER: "attention named above"}, []
    for name in others:
        base, title = behind.get(name, _BASELINE), look_of(name).label
        if base != _BASELINE:
            title += f"<br>against {look_of(base).label}"
            names = {_BASELINE: "baseline: softmax unless named", **names}
        own = rows[rows["attention"].isin([base, name])]
        same = np.where(own["attention"] == base, _BASELINE, _OTHER)
        parts.append(own.assign(panel=title, attention=same))
    plot = Plot(pd.concat(parts), "epoch", "attention", "panel", names=names)
    logs = log and medians.max() > 10 * medians.min()
    # bands of seeds that diverge for some epochs would press the lines together
    plot = plot.metric(metric).scale(y_title=_title(split, words), y_log=logs, y_cut=True)
    columns = len(others) if len(others) <= 5 else next((n for n in (3, 4, 5) if len(others) % n == 0), 4)
    plot = plot.add(Band(quantiles=(0, 100)), Line("median", markers=False))
    return plot.figure("page", columns=columns, labels="key")


def versus_baseline_figure(
    frame: pd.DataFrame,
    panels: Mapping[str, str] | None = None,
    *,
    log: Sequence[str] = ("loss",),
    lines: Mapping[str, float] | None = None,
    published: pd.DataFrame | None = None,
    threshold: float = 0.9,
    words: str = "",
) -> go.Figure:
    """A row per variant, a panel per quantity: the value with its range, filled where it differs from the baseline's.

    A filled marker says that the difference from the softmax baseline is significant, an open one that it is
    not; where there is no value stands why. The baseline's own is filled, and a line goes through it. A stroke is the
    value of another baseline, which the column ``baseline`` names. A grey bar shows the null distribution and a stroke
    the floor where there are columns ``null_low``, ``null_high`` and ``floor``.

    Args:
        frame: rows of `workbench.studies.baselines` (its `COLUMNS`), one model per variant.
        panels: quantity → title of its panel, in order; by default those of `ends_and_speed` in
            `workbench.studies.baselines`, perplexity in the place of loss where there is one. Accuracies are drawn in
            per cent.
        log: the quantities with logarithmic axes.
        lines: quantity → where its line stands instead, e.g. at 1 for no change.
        published: what papers print, beside their own baselines, at the right end of the rows: the result of
            `workbench.studies.baselines.printed_ends` (columns attention, metric, value, baseline_value).
        threshold: the accuracy whose epoch is given, for the title of its panel.
        words: what value and range are, in the key; by default median and range over seeds.

    Raises:
        InputError: no row of some quantity, or two models with the same attention.
        UnknownName: a published metric that has no words here.
    """
    _one_model_each(frame, "the frame has no rows")
    known = frame["quantity"].unique()
    panels = _end_panels(known, threshold) if panels is None else panels
    side, side_title = _beside(published)
    for quantity in set(panels) - {*known}:
        raise InputError(f"the frame has no {quantity}; its quantities: {', '.join(known)}")
    other = _other_baselines(frame)
    rows = frame.reindex(columns=[*dict.fromkeys([*frame.columns, *_SCALED])]).assign(reference=other)
    rows[_SCALED] = rows[_SCALED].astype(float).mul(np.where(rows["quantity"] == "accuracy", 100, 1), axis=0)
    rows["same"] = ~rows["finding"].isin(["", "lower", "higher"])
    rows["side"] = rows["attention"].map(side)
    own = rows[rows["finding"] == ""].groupby("quantity")["value"].mean()
    levels = own.to_dict() | dict(lines or {})
    beside = "its baseline" if other.notna().any() else "softmax"
    hollow = ("same", f"not significant beside {beside}")
    counts = rows.groupby("attention")["n"].max().dropna().astype(int) if "n" in rows else rows.iloc[:0]
    seeds = (
        f"{' to '.join(dict.fromkeys(map(str, (counts.min(), counts.max()))))} seeds"
        if len(counts)
        else "seeds"
    )
    words = words or f"median and range over {seeds} (where wider than the mark)"
    nulls = "null_low" in rows and rows["null_low"].notna().any()
    forest = Plot(rows, y="attention", x=panels, panel="quantity")
    forest = forest.scale(
        x_log=[*log], row=2.1 if nulls else 1.5
    )  # a null is seen above and below its marker
    forest = forest.add(Null(words=NOISE), Stroke(name="floor: error of the true projections"))
    if other.notna().any():
        pairs = frame[other.notna()].drop_duplicates("model")
        attention = frame.drop_duplicates("model").set_index("model")["attention"]
        of = {
            f"{look_of(attention[row.baseline]).label}, baseline of {look_of(row.attention).label}"
            for row in pairs.itertuples()
        }
        forest = forest.add(Stroke("reference", name="; ".join(sorted(of))))
    forest = forest.add(Interval(columns=("value", "low", "high"), words=words, hollow=hollow))
    forest = forest.add(Rule(levels, "ratio of 1" if lines else "softmax"))
    return (forest.add(Text("side", title=side_title)) if side else forest).figure()


def _other_baselines(frame: pd.DataFrame) -> pd.Series:
    """The value of each row's baseline, NaN where that has no baseline itself: a line through all rows shows it."""
    values = frame.set_index(["model", "quantity"])["value"]
    compared = set(frame.loc[frame["finding"] != "", "model"])
    keys = zip(frame.get("baseline", [None] * len(frame)), frame["quantity"], strict=True)
    return pd.Series(
        [values[key] if key[0] in compared else np.nan for key in keys], frame.index, dtype=float
    )


def _end_panels(known: Iterable[str], threshold: float) -> dict[str, str]:
    """Titles of what training comes to, by quantity; a perplexity says all that the loss would."""
    left_out = "loss" if "perplexity" in known else "perplexity"
    return {name: title.format(f"{100 * threshold:g}") for name, title in _ENDS.items() if name != left_out}


def _beside(published: pd.DataFrame | None) -> tuple[dict[str, str], str]:
    """Attention → what papers print of it beside its baseline's, in words; and the title of these."""
    rows = [] if published is None else published.to_dict("records")
    metrics = {row["metric"] for row in rows}
    for metric in metrics - set(_PRINTED):
        raise UnknownName("metric of a published end of training", metric, _PRINTED)
    words = {
        row["attention"]: _PRINTED[row["metric"]][1].format(row["value"], row["baseline_value"])
        for row in rows
    }
    title = ",<br>or ".join(name for metric, (name, _) in _PRINTED.items() if metric in metrics)
    spaced = {name: text.replace("%", " %") for name, text in words.items()}
    return spaced, f"Published (its baseline):<br>{title}"


def _axis(metric: str) -> tuple[str, int, bool]:
    if metric not in _AXES:
        raise UnknownName("metric of a training curve", metric, _AXES)
    return _AXES[metric]


def _title(split: str, words: str) -> str:
    return f"{split.capitalize()} {words}" if words[0].islower() else words


def _one_model_each(rows: pd.DataFrame, nothing: str) -> list[str]:
    """The variants in the order of figures, each of which must stand for one model."""
    if rows.empty:
        raise InputError(f"{nothing}; give the result of workbench.studies.baselines")
    models = rows.groupby("attention")["model"].unique()
    for attention, own in models.items():
        if len(own) > 1:
            raise InputError(f"{', '.join(own)} all have {attention} attention; give one model per variant")
    return in_order(models.index)


def ablation_figure(results: pd.DataFrame, seeds: pd.DataFrame, printed: pd.DataFrame) -> go.Figure:
    """A row per model: on the left a panel per task with the accuracy of every seed and the mean, then differences.

    A difference from the row without one has its 95 % interval, filled where that leaves out zero; published
    differences are open diamonds.

    Args:
        results: rows of `workbench.studies.baselines.versus_baseline` with a column ``label``, the words of a row; rows
            stand in the order of the frame.
        seeds: rows of `workbench.studies.baselines.ends_and_speed` with the same column.
        printed: columns label, where, difference: what a paper prints, in the unit of `results`. May be empty.

    Raises:
        InputError: no accuracies.
    """
    results, seeds = (frame[frame["quantity"] == "accuracy"] for frame in (results, seeds))
    if results.empty:
        raise InputError(
            "the frame has no accuracy; give the result of workbench.studies.baselines.versus_baseline"
        )
    ends = {"difference": "value", "difference_low": "low", "difference_high": "high"}
    same = ~results["finding"].isin(["lower", "higher"])
    beside = results.drop(columns=["value", "low", "high", "finding"], errors="ignore").rename(columns=ends)
    every = seeds.groupby(["task", "label"], sort=False)["value"].transform("mean")
    drawn = seeds.assign(mean=every, panel=seeds["task"], low=float("nan"), high=float("nan"), same=False)
    known = beside["value"].notna()
    beside = beside.assign(panel="difference", same=same & known, finding=known.map({False: "reference"}))
    drawn = pd.concat([beside, drawn])
    order = [*dict.fromkeys(results["label"])]
    drawn = drawn.sort_values("label", key=lambda labels: labels.map(order.index), kind="stable")
    numbers = ["value", "low", "high", "mean"]
    drawn[numbers] = drawn[numbers].astype(float) * 100
    references = results.loc[results["difference"].isna(), "label"].str.partition(" (")[0]
    named = " or ".join(dict.fromkeys(references)) or "the reference"
    titles = {task: f"{task.capitalize()}:<br>test accuracy (%)" for task in results["task"].unique()}
    titles["difference"] = f"Difference (points)<br>from {named}"
    published = printed.assign(value=printed["difference"] * 100, panel="difference", table=printed["where"])
    return Plot(drawn, y="label", x=titles, panel="panel", color="task").scale(row=2.7).add(
        Interval(
            columns=("value", "low", "high"), words="difference of means, 95 % CI (Welch)", alone="each seed",
            hollow=("same", "not significant"),
        ),
        Stroke("mean", "mean over seeds"), Rule({"difference": 0.0}, "no difference"),
        Published(published, ranges=True, beside=True, words=_printed(published)),
    ).figure()  # fmt: skip


def _printed(published: pd.DataFrame) -> str:
    """What the diamonds are, for the key: other models than those of the row, and of several the median and range."""
    most = max((len(own) for _, own in published.groupby("label")), default=1)
    many = f": median and range of {most} differences" if most > 1 else ""
    return f", paper's model{'s' * (most > 1)}, without a test{many}"
