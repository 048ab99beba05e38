"""Powers of the number of tokens, or of features, with which time and memory grow; and those of wu2025's Table 1."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.core.intervals import half_width
from workbench.papers.operators import SWEEPS
from workbench.papers.published import published

UPPER = 8
"""A curve is fitted from this fraction of its largest size on: four sizes where they double."""
LEAST = 3
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
_AXES = {"tokens": "tokens", "width": "head_dim"}
_ROWS = {
    "softmax": "ViT",
    "softmax-eager": "ViT",
    "mssa": "CRATE",
    "xca": "XCiT",
    "tssa": "ToST (ours)",
}


def scaling_exponents(frame: pd.DataFrame) -> pd.DataFrame:
    """Fitted exponents of a frame of `scaling_study`: slopes of least squares in log–log coordinates.

    Only the upper part of a curve counts, its sizes from an eighth of the largest on, since below it constant costs and
    lower powers weigh; a curve with fewer than three such points has no row. ``low`` to ``high`` is the 95 % t-interval
    of a measured slope; what is counted has none. In a sweep over the width the heads stay, so the exponent is that of
    the head dimension. ``metric`` is time_exponent_tokens, …, ``source`` "measured" or "counted" (multiply–accumulates
    and bytes of tensors, at the same sizes). Columns: `EXPONENT_COLUMNS`.
    """
    rows = []
    known = frame[frame["value"] > 0]
    for (sweep, operator, condition, metric), part in known.groupby(
        ["sweep", "operator", "condition", "metric"], sort=False
    ):
        axis = SWEEPS[str(sweep)].axis
        quantity, source = _QUANTITIES[str(metric)]
        upper = part[part[axis] >= part[axis].max() / UPPER]
        if len(upper) < LEAST:
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
    return pd.DataFrame(rows, columns=list(EXPONENT_COLUMNS))


def fitted_power(sizes: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Slope of log value against log size by least squares, and half its 95 % t-interval."""
    from scipy import stats

    fit = stats.linregress(np.log(sizes), np.log(values))
    error = np.nan_to_num(fit.stderr)  # scipy has none for values that are all the same
    return float(fit.slope), float(half_width(error, len(sizes) - 2))


def printed_exponents() -> pd.DataFrame:
    """wu2025's Table 1 for one attention head, under our names, in each sweep that varies the same axis.

    The table leaves out the projections and the tokens themselves. It has no causal operators. Columns as in
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
