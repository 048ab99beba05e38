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
        "eigenvalue_profile",
        "Gram eigenvalue, mean over heads and layers",
        "",
        0,
        INF,
        "μ_d averaged over the heads and layers of an input at each of the top head_dim ranks; then "
        "maximum, minimum, mean or lower median over the ranks",
        "saritas2025 App. B.1, Tables 2, 3",
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
        "logit_share",
        "Share of logit variance",
        "",
        -INF,
        INF,
        "variance within rows (over the keys a query may attend to) of a term of the logits, over that of the logits: "
        "token-token, token-position, position-token, position-position (query first), and covariances, which add up "
        "to 1; cross: of token-position + position-token",
        "abdullaev2025 Fig. 2",
    ),
    Metric(
        "logit_correlation",
        "Correlation with the other logits",
        "",
        -1,
        1,
        "correlation within rows of token-position, position-token or both (cross) with token-token + "
        "position-position; statistic abs: its absolute value; chance: positions shuffled over tokens",
        "abdullaev2025 §III-C",
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
        "class_attention",
        "Attention of the class token",
        "",
        0,
        1,
        "A_cj of the query c that is read (column convention), for key j = rank − 1 (rank 1 is the first token); "
        "column candidate: head (each by itself), mean (over heads) or rollout",
        "wu2025 Figs 5, 10; abdullaev2025 Figs 4, 6; Abnar & Zuidema 2020",
    ),
    Metric(
        "class_attention_prefix",
        "Class attention on tokens of no place",
        "",
        0,
        1,
        "share of class_attention on class, distillation, register and special tokens",
        "workbench",
    ),
    Metric(
        "class_attention_entropy_share",
        "Relative entropy of class attention",
        "",
        0,
        1,
        "entropy of class_attention over patches or words, their share scaled to 1, over the log of their number",
        "workbench",
    ),
    Metric(
        "class_attention_spread",
        "Relative spread of class attention",
        "",
        0,
        INF,
        "root mean square distance of patches (or words) from their centre, weighted by class_attention, over that of "
        "even attention",
        "workbench",
    ),
    Metric(
        "class_attention_diversity",
        "Diversity of heads",
        "",
        0,
        1,
        "Jensen–Shannon divergence of the heads' class_attention over patches or words, over log(heads); 0: all alike, "
        "1: no two at the same token",
        "Lin 1991",
    ),
    Metric(
        "class_attention_mask",
        "Class attention on the mask",
        "",
        0,
        1,
        "share of class_attention over patches that lies on the foreground of a mask; even attention gives its share "
        "of the area",
        "workbench",
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
    Metric(
        "MDC",
        "Cosine of V and V̇ matched by index",
        "",
        -1,
        1,
        "cosine of the columns (axis features) or rows (axis tokens) of V and V̇ of equal index; maximum "
        "or mean over the pairs",
        "saritas2025 Tables 1, 4",
    ),
    Metric(
        "MOC",
        "Cosine of V and V̇ matched best",
        "",
        -1,
        1,
        "cosine of the columns (axis features) or rows (axis tokens) of V and V̇ under the one-to-one "
        "matching of largest sum; maximum or mean over the pairs",
        "saritas2025 Tables 1, 4",
    ),
    Metric(
        "abs_cos",
        "Unsigned cosine of V and V̇ matched by index",
        "",
        0,
        1,
        "|cos| of the columns of V and V̇ of equal index, maximum or mean; no sign of an eigenvector "
        "changes it",
        "workbench",
    ),
    Metric(
        "LCKA",
        "Linear CKA of V and V̇",
        "",
        0,
        1,
        "linear centred kernel alignment of V and V̇",
        "saritas2025 Tables 1, 4; Kornblith et al. 2019",
    ),
    Metric(
        "KCKA",
        "RBF CKA of V and V̇",
        "",
        0,
        1,
        "centred kernel alignment with exp(−D/2σ²), σ² the lower median of the squared distances D of "
        "each matrix; biased HSIC",
        "saritas2025 Tables 1, 4; Kornblith et al. 2019",
    ),
    Metric(
        "allclose",
        "Share of heads whose V equals V̇",
        "",
        0,
        1,
        "1 where every entry of V is close to that of V̇, else 0: |a−b| ≤ 1e-3 + 1e-5|b| (convention "
        "text) or ≤ 1e-5 + 1e-3|b| (code)",
        "saritas2025 §3",
    ),
    Metric(
        "principal_angle",
        "Principal angle between span(V) and span(V̇)",
        "radians",
        0,
        math.pi / 2,
        "angles between the column spaces of V and V̇, minimum or mean; neither sign nor order of "
        "eigenvectors changes them",
        "workbench",
    ),
    Metric(
        "span_share",
        "Share of the squared norm inside the span",
        "",
        0,
        1,
        "share of ‖V‖² inside span(V̇); for a candidate, of ‖Â‖² inside the span of the top eigenvectors "
        "(isotropic chance: d_v/(N−1))",
        "workbench",
    ),
    Metric(
        "gamma_abs",
        "Difference of γ",
        "",
        0,
        INF,
        "|γ_i − γ_j| over pairs of tokens i<j, mean or standard deviation, with γ = (K̃â)/(Nâ) "
        "elementwise; 0 for an eigenvector",
        "teo2024 Figs 2, 5; saritas2025 Fig. 3",
    ),
    Metric(
        "gamma_rel",
        "Relative difference of γ",
        "",
        0,
        INF,
        "|γ_i − γ_j| / (max(|γ_i|, |γ_j|) + 1e-10) over pairs of tokens i<j, mean or standard deviation",
        "saritas2025 Fig. 3",
    ),
    Metric(
        "gamma_floor",
        "Difference of γ from rounding alone",
        "",
        0,
        INF,
        "what gamma_abs of a true eigenvector comes to at the precision of the run",
        "workbench",
    ),
    Metric(
        "gamma_size",
        "Mean size of γ",
        "",
        0,
        INF,
        "mean |γ_i| over tokens of a true eigenvector (μ_d/N), which gamma_abs is to be read against",
        "workbench",
    ),
    Metric(
        "inconsistency",
        "Inconsistency of V with any eigenvectors",
        "",
        0,
        1,
        "‖1_N G⁻¹V‖ / ‖G⁻¹V‖: 0 where a matrix A with V = G A − G 1_N A exists, 1 where V has no part of "
        "that form",
        "workbench",
    ),
    Metric(
        "eigen_residual",
        "Eigen-residual",
        "",
        0,
        1,
        "‖K̃â − ρâ‖ / ‖K̃â‖ with the Rayleigh quotient ρ = âᵀK̃â / âᵀâ; 0 for an eigenvector",
        "workbench",
    ),
    Metric(
        "projection_error",
        "Projection error",
        "",
        -INF,
        INF,
        "J_proj by its convention: teo2024-text mean(‖φ‖² − ‖h‖²), teo2024-code its logarithm (nats) as "
        "published, saritas2025 mean |‖φ‖² − ‖h‖²|, exact the loss of the best signed assignment of "
        "outputs to axes",
        "teo2024 eq. 13, Fig. 1; saritas2025 App. A",
    ),
    Metric(
        "projection_floor",
        "Projection error of the true projections",
        "",
        0,
        INF,
        "exact projection error of h = P/μ, the least there is",
        "workbench",
    ),
    Metric(
        "projection_baseline",
        "Projection error of predicting nothing",
        "",
        0,
        INF,
        "mean over tokens of ‖φ(q)‖²: the exact projection error of an output of zeros",
        "workbench",
    ),
    Metric(
        "phi_norm2",
        "Squared norm of φ(q)",
        "",
        0,
        INF,
        "‖φ(q_i)‖² = exp(s q_i·q_i − 2 log g(q_i)); mean, median or quantile over tokens",
        "saritas2025 Figs 1, 2, 5",
    ),
    Metric(
        "h_norm2",
        "Squared norm of the head output",
        "",
        0,
        INF,
        "‖h_i‖² of a head's attention output before the output projection; mean, median or quantile over "
        "tokens",
        "saritas2025 Figs 1, 2, 5",
    ),
    Metric(
        "projection_error_over_phi",
        "Projection error relative to ‖φ(q)‖²",
        "",
        0,
        INF,
        "mean over tokens of |‖φ‖² − ‖h‖²| / (‖φ‖² + 1e-8)",
        "saritas2025 App. A",
    ),
    Metric(
        "projection_error_over_h",
        "Projection error relative to ‖h‖²",
        "",
        0,
        INF,
        "mean over tokens of |‖φ‖² − ‖h‖²| / (‖h‖² + 1e-8)",
        "saritas2025 App. A",
    ),
    Metric(
        "coding_rate",
        "Coding rate R",
        "nats",
        0,
        INF,
        "R(Z) = ½ log det(I + (d/ε²)(1/n) ZᵀZ) of the tokens named by the candidate: what attention receives (input), "
        "the stream after attention, or after the block",
        "wu2025 eq. 1",
    ),
    Metric(
        "coding_rate_compression",
        "Coding rate within heads R_c",
        "nats",
        0,
        INF,
        "R_c(Z, Π) = ½ Σ_k (n_k/n) log det(I + (d/ε²)(1/n_k) Zᵀ Diag(π_k) Z), Π by its convention",
        "wu2025 eq. 1",
    ),
    Metric(
        "coding_rate_reduction",
        "Coding rate reduction ΔR",
        "nats",
        0,
        INF,
        "ΔR = R − R_c: what grouping the tokens by head saves",
        "wu2025 eq. 1",
    ),
    Metric(
        "coding_rate_variational",
        "Variational compression R_c^var",
        "nats",
        0,
        INF,
        "½ Σ_k (n_k/n) Σ_i log(1 + (d/ε²)(1/n_k) Σ_j Π_jk w_jki²), w_k = Z U_k; U_k as the layer has them, or "
        "orthonormal (standardize)",
        "wu2025 eq. 4, Fig. 4a",
    ),
    Metric(
        "membership_entropy_share",
        "Relative entropy of membership",
        "",
        0,
        1,
        "−Σ_k Π_jk log Π_jk / log(heads), mean over tokens: 0 where every token belongs to one head, 1 where to all "
        "alike; convention text, code (as ToST is trained) or ours (softmax models: subspaces of the values)",
        "wu2025 eq. 10",
    ),
    Metric(
        "membership_share",
        "Share of the tokens in a head",
        "",
        0,
        1,
        "mean over tokens of Π_jk, of each head or of the largest (statistic max; 1/heads where all are alike)",
        "wu2025 eq. 10",
    ),
    Metric(
        "membership_ari",
        "Adjusted Rand index of heads and segments",
        "",
        -0.5,
        1,
        "agreement of the patches' heads (largest Π_jk) with a segmentation: 1 the same partition, 0 chance",
        "wu2025 Figs 4b, 9; Hubert & Arabie 1985",
    ),
    Metric(
        "membership_iou",
        "IoU of segments with their best head",
        "",
        0,
        1,
        "intersection over union of a segment's patches with those of the head (largest Π_jk) that fits best, mean "
        "over the segments; chance is above 0, since the best head is looked for",
        "wu2025 Figs 4b, 9",
    ),
    Metric(
        "coherence_inside",
        "Mean |cos| of two directions of a head",
        "",
        0,
        1,
        "mean over the pairs of different columns of the same U_k, at unit length; chance: random directions",
        "wu2025 Fig. 11",
    ),
    Metric(
        "coherence_between",
        "Mean |cos| of directions of two heads",
        "",
        0,
        1,
        "mean over the pairs of columns of different U_k, at unit length; chance: random directions",
        "wu2025 Fig. 11",
    ),
    Metric(
        "subspace_angle",
        "Principal angle between two heads",
        "radians",
        0,
        math.pi / 2,
        "angles between the span of this head's U_k and that of the head named by axis, smallest first; chance: random "
        "subspaces",
        "workbench",
    ),
    Metric(
        "accuracy_top1",
        "Top-1 accuracy",
        "",
        0,
        1,
        "share of inputs whose most likely class is the right one; low and high: 95 % Wilson interval",
        "teo2024 Tables 1, 2; abdullaev2025 Table III",
    ),
    Metric(
        "accuracy_top5",
        "Top-5 accuracy",
        "",
        0,
        1,
        "share of inputs whose right class is among the five most likely; low and high: 95 % Wilson interval",
        "teo2024 Tables 1, 2; abdullaev2025 Table III",
    ),
    Metric(
        "corruption_error",
        "Error under corruption",
        "",
        0,
        1,
        "1 − top-1 accuracy averaged over the five severities of a corruption; without a kind, over all types",
        "teo2024 Table 4; Hendrycks & Dietterich 2019",
    ),
    Metric(
        "mCE",
        "Mean corruption error relative to a reference",
        "",
        0,
        INF,
        "corruption_error of each type divided by a reference model's, averaged over types (the papers divide "
        "by AlexNet's, in per cent)",
        "teo2024 Tables 1, 4; Hendrycks & Dietterich 2019",
    ),
    Metric(
        "aupr",
        "AUPR of telling foreign inputs",
        "",
        0,
        1,
        "average precision of the negative maximum softmax probability, foreign inputs being the positive "
        "class; chance is their share, 1/2",
        "teo2024 Table 1, App. A.1",
    ),
    Metric(
        "perplexity",
        "Perplexity",
        "",
        1,
        INF,
        "exp of the mean negative log-likelihood of a token, sliding window; low and high: 95 % t-interval over "
        "texts",
        "teo2024 Table 3; abdullaev2025 Table II",
    ),
    Metric(
        "perplexity_kept",
        "Perplexity of the words left alone",
        "",
        1,
        INF,
        "perplexity over the tokens that no swapped word touches",
        "workbench",
    ),
    Metric(
        "sparse_zeros",
        "Zeros of the sparse part",
        "",
        0,
        1,
        "share of the entries of S that are exactly zero, S being what RPC-Attention splits off its keys",
        "teo2024 §3; workbench",
    ),
    Metric(
        "sparse_share",
        "Energy of the sparse part",
        "",
        0,
        INF,
        "‖S‖² / ‖K‖²; above 1 where S and the rest cancel",
        "teo2024 §3; workbench",
    ),
    Metric(
        "sparse_evenness",
        "Evenness of the sparse part over tokens",
        "",
        0,
        1,
        "(Σ_j e_j)² / (N Σ_j e_j²) with e_j = ‖S_j‖²: 1/N where one token holds all of S, 1 where all hold alike; "
        "undefined for S = 0",
        "workbench",
    ),
    Metric(
        "pursuit_gap",
        "Gap of the pursuit",
        "",
        0,
        INF,
        "‖K − L − S‖ / ‖K‖: what the constraint L + S = K of principal component pursuit is missed by",
        "teo2024 eq. 14; workbench",
    ),
    Metric(
        "contamination_auc",
        "AUC of telling contaminated patches",
        "",
        0,
        1,
        "chance that a contaminated patch has a larger ‖S_j‖ (over all heads) than another one of its image, or what "
        "the candidate names in the place of S; 1/2 by chance",
        "workbench",
    ),
    Metric(
        "contamination_share",
        "Energy on contaminated patches",
        "",
        0,
        1,
        "share of Σ_j ‖S_j‖² that lies on contaminated patches, of all patches; by chance their share of the area",
        "workbench",
    ),
    Metric(
        "parameters",
        "Parameters",
        "",
        0,
        INF,
        "number of parameters of a model; one that layers share counts once",
        "teo2024 Table 13; wu2025 Table 2",
    ),
    Metric(
        "macs",
        "Multiply–accumulates of a forward pass",
        "",
        0,
        INF,
        "of one input, in matrix products, convolutions and attention; at test what does not depend on the input is "
        "computed beforehand; with the backward pass where the condition says so",
        "abdullaev2025 Table V",
    ),
    Metric(
        "seconds_per_sample",
        "Time per input",
        "s",
        0,
        INF,
        "time of a batch divided by its inputs: in training forward, loss and backward, at test forward",
        "teo2024 Table 13",
    ),
    Metric(
        "peak_memory",
        "Peak memory",
        "bytes",
        0,
        INF,
        "most bytes of tensors alive at once in a step, without weights, divided by the inputs of the batch; in "
        "papers' tables all memory of the device, as they measure it",
        "teo2024 Table 13; wu2025 Fig. 1",
    ),
    Metric(
        "device_memory",
        "Peak memory of the device",
        "bytes",
        0,
        INF,
        "most by which the memory in use rises while a step runs: on a GPU the allocator's, on a CPU resident memory, "
        "so that what fused kernels need inside counts",
        "wu2025 Figs 1, 6, 7, 8",
    ),
    Metric(
        "time_exponent_tokens",
        "Power of the tokens in time",
        "",
        -INF,
        INF,
        "slope of log time against log tokens, over the upper part of a curve; printed: of the time complexity of an "
        "attention head",
        "wu2025 Table 1",
    ),
    Metric(
        "time_exponent_head_dim",
        "Power of the head dimension in time",
        "",
        -INF,
        INF,
        "slope of log time against log width at the same number of heads; printed: as for tokens",
        "wu2025 Table 1",
    ),
    Metric(
        "memory_exponent_tokens",
        "Power of the tokens in memory",
        "",
        -INF,
        INF,
        "slope of log memory against log tokens, over the upper part of a curve; printed: of the memory complexity of "
        "an attention head, the tokens themselves left out",
        "wu2025 Table 1",
    ),
    Metric(
        "memory_exponent_head_dim",
        "Power of the head dimension in memory",
        "",
        -INF,
        INF,
        "slope of log memory against log width at the same number of heads; printed: as for tokens",
        "wu2025 Table 1",
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
