"""The analyses by name: of the workbench, each in the file of its name, and of plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from workbench.analyses.analysis import Analysis
from workbench.core.errors import InputError, UnknownName
from workbench.core.plugins import Registry, instance_of
from workbench.frames.metrics import METRICS

_OURS = {
    "gram-spectrum": "eigenvalue eigenvalue_profile eigenvalue_share gram_log_trace effective_rank rank_90",
    "attention-map": "attention_entropy attention_entropy_share attention_distance attention_sink attention_sink_key "
    "attention_diversity head_output_norm nonfinite",
    "class-attention": "class_attention class_attention_prefix class_attention_entropy_share class_attention_spread "
    "class_attention_diversity class_attention_mask",
    "token-similarity": "token_cosine token_cosine_rate effective_rank",
    "value-similarity": "MDC MOC abs_cos LCKA KCKA allclose principal_angle span_share",
    "eigenvector-test": "gamma_abs gamma_rel gamma_floor gamma_size inconsistency eigen_residual span_share",
    "projection-error": "projection_error projection_floor projection_zero_predictor phi_norm2 h_norm2 "
    "projection_error_over_phi projection_error_over_h",
    "membership": "membership_entropy_share membership_share membership_ari membership_iou",
    "coding-rate": "coding_rate coding_rate_compression coding_rate_reduction coding_rate_variational",
    "subspaces": "coherence_inside coherence_between subspace_angle",
    "position-logits": "logit_share logit_correlation",
    "attention-spectrum": "singular_value singular_value_relative explained_variance effective_rank rank_90 "
    "rank_90_share r_score_share right_singular_angle right_singular_share",
    "softmax-sensitivity": "softmax_lipschitz softmax_perturbation logit_spread",
    "robust-components": "sparse_zeros sparse_share sparse_evenness pursuit_gap",
    "filter-kernels": "filter_share filter_position filter_content",
    "snr": "snr snr_alpha snr_beta snr_gamma snr_noise_cosine snr_bound snr_gain snr_assumed snr_sufficient snr_raised",
}
"""Our analyses, and the names of their metrics: known before any of them is imported, since that takes torch."""


def _module(analysis: str) -> str:
    return f"workbench.analyses.{analysis.replace('-', '_')}"


METRIC_PLACES = {
    metric: f"{_module(analysis)}:{metric.upper()}"
    for analysis, metrics in _OURS.items()
    for metric in metrics.split()
}
"""Where the metrics of our analyses are defined, as `workbench.core.plugins.Registry` looks them up."""


class Analyses(Registry[Analysis]):
    """Analyses by name; one that joins brings its metrics."""

    def __setitem__(self, name: str, entry: Analysis) -> None:
        for metric in entry.metrics:
            if METRICS.setdefault(metric.name, metric) != metric:
                raise InputError(f"its metric {metric.name!r} is the name of another; call it otherwise")
        super().__setitem__(name, entry)


ANALYSES = Analyses(
    {name: f"{_module(name)}:ANALYSIS" for name in _OURS}, "workbench.analyses", instance_of(Analysis)
)


def find_analysis(name: str, options: Mapping[str, Any]) -> tuple[Analysis, Any]:
    """An analysis, and its options as its functions receive them, complete and valid.

    Raises `UnknownName` for an analysis or option that does not exist, with the nearest names, and
    `InputError` for a value of the wrong kind.
    """
    if name not in ANALYSES:
        raise UnknownName("analysis", name, ANALYSES)
    return ANALYSES[name], ANALYSES[name].asked(options)


def check_request(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an analysis, complete and valid, by name; raises what `find_analysis` raises."""
    return asdict(find_analysis(name, options)[1])
