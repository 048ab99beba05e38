"""The one table of metrics: what each number in a result frame means."""

from __future__ import annotations

import math
from dataclasses import dataclass

INF = math.inf


@dataclass(frozen=True)
class Metric:
    """A quantity that a result frame may hold.

    ``low`` and ``high`` bound its values; ``label`` is what a figure's axis says; ``unit`` is empty where the
    quantity has none.
    """

    name: str
    label: str
    unit: str
    low: float
    high: float
    definition: str
    source: str
    averaged: bool = True
    """Whether a mean of it means anything: the number of a token has none."""

    @property
    def axis_title(self) -> str:
        """Label with its unit, as an axis shows it."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


_TABLE = (
    Metric(
        "eigenvalue",
        "Gram eigenvalue",
        "",
        0,
        INF,
        "μ_d of K̃ = C K_φ C, largest first; N times teo2024's λ_d",
        "teo2024 eq. 11; saritas2025 Tables 2, 3",
    ),
    Metric(
        "eigenvalue_share",
        "Share of the spectrum",
        "",
        0,
        1,
        "eigenvalue divided by the sum of the head's spectrum; defined also where eigenvalues underflow",
        "workbench",
    ),
    Metric(
        "gram_log_trace",
        "Logarithm of the Gram matrix's trace",
        "nats",
        -INF,
        INF,
        "log Σ_d μ_d; with eigenvalue_share it gives every eigenvalue, however small",
        "workbench",
    ),
    Metric(
        "effective_rank",
        "Effective rank",
        "",
        0,
        INF,
        "exp(−Σ p log p) with p the spectrum divided by its sum; 0 for a spectrum of zeros",
        "Roy & Vetterli 2007",
    ),
    Metric(
        "rank_90",
        "Rank holding 90 % of the variance",
        "",
        0,
        INF,
        "smallest r at which the first r spectrum values hold 90 % of the variance; 0 for a spectrum of zeros",
        "chen2023 Fig. 1",
    ),
    Metric(
        "token_cosine",
        "Mean token cosine",
        "",
        -1,
        1,
        "mean over pairs i≠j of the cosine of two tokens' hidden states",
        "abdullaev2025 Fig. 5",
    ),
    Metric(
        "attention_entropy",
        "Attention entropy",
        "nats",
        0,
        INF,
        "−Σ_j A_ij log A_ij, mean over queries; at most log N",
        "Vig & Belinkov 2019",
    ),
    Metric(
        "attention_entropy_share",
        "Relative attention entropy",
        "",
        0,
        1,
        "attention_entropy divided by the log of the number of keys a query may see, mean over queries that see "
        "at least two",
        "workbench",
    ),
    Metric(
        "attention_distance",
        "Mean attention distance",
        "patches or tokens",
        0,
        INF,
        "Σ_j A_ij dist(i, j) / Σ_j A_ij, mean over queries; Euclidean on the patch grid over patches only (in "
        "patches), |i − j| in a text (in tokens)",
        "Dosovitskiy et al. 2021, Fig. 7",
    ),
    Metric(
        "attention_sink",
        "Largest share of attention on one key",
        "",
        0,
        1,
        "max over keys of the attention that the key receives, mean over queries; null_mean is that of attention "
        "spread evenly over the keys each query may see",
        "Xiao et al. 2024",
    ),
    Metric(
        "attention_sink_key",
        "Key that receives most attention",
        "token",
        0,
        INF,
        "index (from 0) of the key whose share is attention_sink",
        "Xiao et al. 2024",
        averaged=False,
    ),
    Metric(
        "head_output_norm",
        "Head output norm relative to the layer's mean",
        "",
        0,
        INF,
        "root mean square of a head's output over that of all heads in its layer; near 0 is a dead head",
        "Michel et al. 2019",
    ),
    Metric(
        "nonfinite",
        "Non-finite entries",
        "",
        0,
        INF,
        "how many entries of the head's attention are NaN or infinite",
        "workbench",
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
