"""Fit the growth exponents of time and memory in tokens or features, and read wu2025's Table 1."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.core.intervals import Finding, half_width
from workbench.frames.results import provenance_of
from workbench.papers.operators import SWEEPS
from workbench.papers.published import published

_WITHIN = 0.5
"""Largest deviation of a local exponent of the counted cost from the last one, for sizes in a fit."""
_LEAST = 3
EXPONENT_COLUMNS = (
    "sweep", "operator", "condition", "metric", "source", "value", "low", "high", "points", "smallest", "largest",
)  # fmt: skip
PRINTED = "wu2025 Table 1"
_QUANTITIES = {
    "seconds_per_sample": ("time", "measured"),
    "macs": ("time", "counted"),
    "device_memory": ("memory", "measured"),
    "peak_memory": ("memory", "counted"),
}
_COUNTED = {quantity: metric for metric, (quantity, source) in _QUANTITIES.items() if source == "counted"}
_AXES = {"tokens": "tokens", "width": "head_dim"}
_ROWS = {
    "softmax": "ViT",
    "softmax-eager": "ViT",
    "mssa": "CRATE",
    "xca": "XCiT",
    "tssa": "ToST (ours)",
}


def scaling_exponents(frame: pd.DataFrame) -> pd.DataFrame:
    """Fit the exponents of a frame of `scaling_study`: slopes of least squares in log–log coordinates.

    A slope excludes the sizes where lower powers matter: those where the counted cost (multiply–accumulates for time,
    bytes of tensors for memory) grows with an exponent more than a half away from that at the largest sizes. Measured
    numbers never choose the sizes; a curve without a counted cost keeps all sizes, and one with fewer than three has no
    row. ``low`` to ``high`` is the 95 % t-interval of a measured slope; counted slopes have none. A sweep over the
    width keeps the heads, so its exponent is that of the head dimension. ``metric`` is time_exponent_tokens, …,
    ``source`` "measured" or "counted" (at the same sizes). Columns: `EXPONENT_COLUMNS`; ``attrs`` are those of the
    frame.
    """
    rows = []
    positive = frame[frame["value"] > 0]
    curves = dict(iter(positive.groupby(["sweep", "operator", "condition", "metric"], sort=False)))
    for (sweep, operator, condition, metric), part in curves.items():
        axis = SWEEPS[str(sweep)].axis
        quantity, source = _QUANTITIES[str(metric)]
        counted = curves.get((sweep, operator, condition, _COUNTED[quantity]))
        upper = part if counted is None else part[part[axis] >= _regime(counted[axis], counted["value"])]
        if len(upper) < _LEAST:
            continue
        slope, error = fitted_power(upper[axis].to_numpy(float), upper["value"].to_numpy(float))
        error = error if source == "measured" else np.nan
        rows.append(
            {
                "sweep": sweep, "operator": operator, "condition": condition,
                "metric": f"{quantity}_exponent_{_AXES[axis]}", "source": source, "value": slope,
                "low": slope - error, "high": slope + error, "points": len(upper),
                "smallest": upper[axis].min(), "largest": upper[axis].max(),
            }
        )  # fmt: skip
    exponents = pd.DataFrame(rows, columns=list(EXPONENT_COLUMNS))
    exponents.attrs = dict(frame.attrs)
    return exponents


def _regime(sizes: pd.Series, counted: pd.Series) -> float:
    """Return the smallest size where a counted cost starts to grow with about the exponent of its largest sizes."""
    order = np.argsort(sizes.to_numpy(float))
    x, y = (np.log(values.to_numpy(float)[order]) for values in (sizes, counted))
    slopes = np.diff(y) / np.diff(x)
    other = np.flatnonzero(np.abs(slopes - slopes[-1:]) > _WITHIN) + 1
    return float(sizes.to_numpy(float)[order][other[-1] if len(other) else 0])


def measured_on(frame: pd.DataFrame) -> str:
    """Return the device, number format and threads of a study."""
    (run, *_) = provenance_of(frame)
    return f"{run['device']}, {run['dtype']}, {run['threads']} thread{'s' if run['threads'] > 1 else ''}"


def times_beside(frame: pd.DataFrame, record: pd.DataFrame) -> str:
    """State the ratio of each operator's time to the recorded time, at the points that both have.

    If all ratios are similar, the machine is slower or busy, and comparisons of operators are unaffected.
    """
    keys = ["sweep", "operator", "condition", "tokens"]
    times = [
        operator_ratios[operator_ratios["metric"] == "seconds_per_sample"].set_index(keys)["value"]
        for operator_ratios in (frame, record)
    ]
    ratios = (times[0] / times[1]).dropna().groupby("operator", sort=False)
    ranges = [
        f"{name} {operator_ratios.min():.1f} to {operator_ratios.max():.1f}"
        for name, operator_ratios in ratios
    ]
    return f"Times in this run over those on record: {', '.join(ranges)}." if ranges else ""


def scaling_findings(frame: pd.DataFrame, sweep: str = "tokens") -> list[str]:
    """State how time and memory of a forward pass grow by operator, and the cost of token statistics attention.

    The sentences of `power_findings`, after the device, and those of `ratio_findings`.
    """
    grows = [*power_findings(frame, "time", sweep), *power_findings(frame, "memory", sweep)]
    return [*(f"{measured_on(frame)}: {sentence}" for sentence in grows), *ratio_findings(frame, sweep)]


def power_findings(frame: pd.DataFrame, quantity: str, sweep: str = "tokens") -> list[str]:
    """State in one sentence the growth exponents of the "time" or "memory" of a forward pass, by operator.

    Exponents are those of `scaling_exponents`, with 95 % confidence intervals. Empty if no curve has enough sizes for a
    fit.
    """
    exponents = scaling_exponents(_forward(frame, sweep)).query("source == 'measured'")
    rows = exponents[exponents["metric"].str.startswith(quantity)]
    grows = [
        f"{Finding(row.value, row.low, row.high, row.points).words()} ({row.operator})"
        for row in rows.itertuples()
    ]
    if not grows:
        return []
    return [
        f"{quantity} of a forward pass grows with the {_AXES[SWEEPS[sweep].axis]} to the power of {', '.join(grows)}: "
        f"slopes over the largest {fitted_sizes(rows)}, 95 % CI."
    ]


def ratio_findings(frame: pd.DataFrame, sweep: str = "tokens") -> list[str]:
    """State the cost of token statistics attention over that of softmax attention, fused and eager, a sentence each.

    For a forward pass at the largest size of both operators, as in wu2025's Fig. 6.
    """
    frame = _forward(frame, sweep)
    costs = {
        name: rows.pivot_table("value", SWEEPS[sweep].axis, "metric")
        for name, rows in frame.groupby(frame["operator"].str.removesuffix("-causal"))
    }
    words = {"seconds_per_sample": "time", "device_memory": "memory"}
    sentences = []
    for other in ("softmax", "softmax-eager"):
        if not {"tssa", other} <= {*costs}:
            continue
        ratios = (costs["tssa"] / costs[other]).reindex(columns=[*words]).dropna(axis=1, how="all").dropna()
        if ratios.size:
            parts = [f"{ratio:.1%} of the {words[metric]}" for metric, ratio in ratios.iloc[-1].items()]
            sentence = f"Attention by tssa takes {' and '.join(parts)} of {other} (n = {ratios.index[-1]})."
            sentences.append(sentence.replace("%", " %"))
    return sentences


def cost_ratios(frame: pd.DataFrame) -> str:
    """State the cost of token statistics over that of softmax in a forward pass, plain and causal, in one sentence.

    At the largest size of both operators in each sweep; a sweep without them is left out.
    """
    parts = []
    for sweep in ("tokens", "causal"):
        rows = _forward(frame, sweep)
        table = rows.pivot_table(
            "value", ["metric", SWEEPS[sweep].axis], rows["operator"].str.removesuffix("-causal")
        )
        if {"tssa", "softmax"} <= {*table}:
            ratios = (table["tssa"] / table["softmax"]).dropna().unstack(0).dropna()
            time, memory = (
                f"{ratios[name].iloc[-1]:.0%}" for name in ("seconds_per_sample", "device_memory")
            )
            words = f"token statistics take {time} of softmax's time and {memory} of its memory"
            parts.append(
                f"causal ones {time} and {memory}" if parts else f"{words} at {ratios.index[-1]} tokens"
            )
    return f"T{'; '.join(parts)[1:]}.".replace("%", " %") if parts else ""


def _forward(frame: pd.DataFrame, sweep: str) -> pd.DataFrame:
    return frame[(frame["condition"] == "forward") & (frame["sweep"] == sweep)]


def fitted_sizes(exponents: pd.DataFrame) -> str:
    """Return the number of sizes in the slopes: "3 to 4 sizes"."""
    least, most = (int(end) for end in (exponents["points"].min(), exponents["points"].max()))
    return f"{most} sizes" if least == most else f"{least} to {most} sizes"


def fitted_power(sizes: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Return the slope of log value against log size by least squares, and half its 95 % t-interval."""
    from scipy import stats

    fit = stats.linregress(np.log(sizes), np.log(values))
    error = np.nan_to_num(fit.stderr)  # scipy has none for values that are all the same
    return float(fit.slope), float(half_width(error, len(sizes) - 2))


def printed_exponents() -> pd.DataFrame:
    """Return wu2025's Table 1 for one attention head, under our names, in each sweep with the same axis.

    The table excludes the projections and the tokens themselves. It has no causal operators. Columns as in
    `scaling_exponents`.
    """
    table = published("wu2025", "1").set_index(["row", "metric"])["value"]
    rows = [
        {
            "sweep": name,
            "operator": operator,
            "metric": metric,
            "source": PRINTED,
            "value": table[row, metric],
        }
        for name, sweep in SWEEPS.items()
        for operator, row in _ROWS.items()
        if operator in sweep.operators
        for metric in (f"time_exponent_{_AXES[sweep.axis]}", f"memory_exponent_{_AXES[sweep.axis]}")
    ]
    return pd.DataFrame(rows, columns=list(EXPONENT_COLUMNS))
