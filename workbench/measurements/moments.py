"""Mean, deviation and interval of one number per input, in memory that does not grow with the inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

LEVEL = 0.95


class Moments:
    """Count, mean and sum of squared deviations of a quantity over inputs, batch by batch.

    Batches are merged by the exact formula for two groups (Chan, Golub & LeVeque 1983), so what comes out depends on
    their sizes by rounding alone. Values that are undefined (NaN) are left out.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = dict(columns)
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.null_sum, self.null_count = 0.0, 0

    def add(self, values: Tensor, null_mean: Tensor | None = None) -> None:
        """Take the values of one batch, (input,), with what chance is expected to give for each."""
        known = values.double()[~values.isnan()]
        if null_mean is not None:
            self.null_sum += float(null_mean.double().sum())
            self.null_count += null_mean.numel()
        if not len(known):
            return
        mean, count = float(known.mean()), len(known)
        total, apart = self.count + count, mean - self.mean
        self.squares += float((known - mean).square().sum()) + apart**2 * self.count * count / total
        self.mean += apart * count / total
        self.count = total

    @property
    def deviation(self) -> float:
        """Standard deviation over inputs (ddof = 1); NaN for fewer than two."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else math.nan

    def interval(self) -> tuple[float, float]:
        """Student's t interval of the mean; NaN for fewer than two inputs."""
        from scipy.stats import t

        if self.count < 2:
            return math.nan, math.nan
        half = float(t.ppf(0.5 + LEVEL / 2, self.count - 1)) * self.deviation / math.sqrt(self.count)
        return self.mean - half, self.mean + half

    def rows(self) -> dict[str, Any]:
        """Columns of the rows ``statistic`` mean, std, low and high; the mean with chance's expected value."""
        low, high = self.interval()
        mean = self.mean if self.count else math.nan
        expected = self.null_sum / self.null_count if self.null_count else math.nan
        return self.columns | {
            "statistic": ["mean", "std", "low", "high"],
            "value": torch.tensor([mean, self.deviation, low, high], dtype=torch.float64).numpy(),
            "null_mean": torch.tensor([expected, *[math.nan] * 3], dtype=torch.float64).numpy(),
        }
