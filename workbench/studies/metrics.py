"""Metrics of evaluations, sparse components and costs, which no analysis measures."""

from __future__ import annotations

from workbench.frames.metric import Metric

_METRICS = (
    Metric(
        "accuracy_top1",
        "Top-1 accuracy",
        "share of inputs whose most likely class is the right one; low and high: 95 % Wilson interval",
        "teo2024 Tables 1, 2; abdullaev2025 Table III",
        low=0,
        high=1,
        better="higher",
    ),
    Metric(
        "accuracy_top5",
        "Top-5 accuracy",
        "share of inputs whose right class is among the five most likely; low and high: 95 % Wilson interval",
        "teo2024 Tables 1, 2; abdullaev2025 Table III",
        low=0,
        high=1,
        better="higher",
    ),
    Metric(
        "corruption_error",
        "Error under corruption",
        "1 − top-1 accuracy averaged over the five severities of a corruption; without a kind, over all types",
        "teo2024 Table 4; Hendrycks & Dietterich 2019",
        low=0,
        high=1,
        better="lower",
    ),
    *(
        Metric(name, label, f"{what}, all images together", papers, low=0, high=1, better="higher")
        for name, label, what, papers in (
            (
                "mean_iou",
                "Mean IoU",
                "intersection over union of predicted and true pixels of a class, mean over classes",
                "teo2024 Table 6; abdullaev2025 Table IV",
            ),
            (
                "pixel_accuracy",
                "Pixel accuracy",
                "share of the pixels whose class is the right one",
                "abdullaev2025 Table IV",
            ),
            (
                "class_accuracy",
                "Class accuracy",
                "share of the pixels of a class that are predicted as this class, mean over classes",
                "teo2024 Table 6; abdullaev2025 Table IV",
            ),
        )
    ),
    Metric(
        "mCE",
        "Mean corruption error relative to a reference",
        "corruption_error of each type divided by a reference model's, averaged over types (the papers divide"
        " by AlexNet's, in per cent)",
        "teo2024 Tables 1, 4; Hendrycks & Dietterich 2019",
        low=0,
        better="lower",
    ),
    Metric(
        "aupr",
        "AUPR of out-of-distribution inputs",
        "average precision of the negative maximum softmax probability, out-of-distribution inputs being the positive "
        "class; for random scores their share, 1/2",
        "teo2024 Table 1, App. A.1",
        low=0,
        high=1,
        better="higher",
    ),
    Metric(
        "perplexity",
        "Perplexity",
        "exp of the mean negative log-likelihood of a token, sliding window; low and high: 95 % t-interval "
        "over texts",
        "teo2024 Table 3; abdullaev2025 Table II",
        low=1,
        log=True,
        better="lower",
    ),
    Metric(
        "perplexity_kept",
        "Perplexity of the unchanged words",
        "perplexity over the tokens that no swapped word touches",
        low=1,
        log=True,
        better="lower",
    ),
    Metric(
        "contamination_auc",
        "AUC of detecting contaminated patches",
        "probability that a contaminated patch has a larger ‖S_j‖ (over all heads) than another patch of its image, "
        "or a larger score of the candidate; 1/2 for random scores",
        low=0,
        high=1,
        better="higher",
    ),
    Metric(
        "contamination_share",
        "Energy on contaminated patches",
        "share of Σ_j ‖S_j‖² that lies on contaminated patches, of all patches; for random marks their share of the "
        "area",
        low=0,
        high=1,
        better="higher",
    ),
    Metric(
        "parameters",
        "Parameters",
        "number of parameters of a model; one that layers share counts once",
        "teo2024 Table 13; wu2025 Table 2",
        low=0,
        log=True,
        better="lower",
    ),
    Metric(
        "macs",
        "Multiply–accumulates of a forward pass",
        "of one input, in matrix products, convolutions and attention; at test what does not depend on the "
        "input is computed beforehand; with the backward pass under the condition training",
        "abdullaev2025 Table V",
        low=0,
        log=True,
        better="lower",
    ),
    Metric(
        "seconds_per_sample",
        "Time per input",
        "time of a batch divided by its inputs: in training forward, loss and backward, at test forward",
        "teo2024 Table 13",
        unit="s",
        low=0,
        log=True,
        better="lower",
    ),
    Metric(
        "peak_memory",
        "Peak memory",
        "most bytes of tensors alive at once in a step, without weights, divided by the inputs of the batch; "
        "in papers' tables all memory of the device, as they measure it",
        "teo2024 Table 13; wu2025 Fig. 1",
        unit="bytes",
        low=0,
        log=True,
        better="lower",
    ),
    Metric(
        "device_memory",
        "Peak memory of the device",
        "most by which the memory in use rises while a step runs: on a GPU the allocator's, on a CPU resident"
        " memory, so that buffers of fused kernels count",
        "wu2025 Figs 1, 6, 7, 8",
        unit="bytes",
        low=0,
        log=True,
        better="lower",
    ),
    Metric(
        "time_exponent_tokens",
        "Scaling exponent of time in sequence length",
        "slope of log time against log tokens, over the upper part of a curve; printed: of the time "
        "complexity of an attention head",
        "wu2025 Table 1",
    ),
    Metric(
        "time_exponent_head_dim",
        "Scaling exponent of time in head dimension",
        "slope of log time against log width at the same number of heads; printed: as for tokens",
        "wu2025 Table 1",
    ),
    Metric(
        "memory_exponent_tokens",
        "Scaling exponent of memory in sequence length",
        "slope of log memory against log tokens, over the upper part of a curve; printed: of the memory "
        "complexity of an attention head, the tokens themselves left out",
        "wu2025 Table 1",
    ),
    Metric(
        "memory_exponent_head_dim",
        "Scaling exponent of memory in head dimension",
        "slope of log memory against log width at the same number of heads; printed: as for tokens",
        "wu2025 Table 1",
    ),
)
TABLE = {metric.name: metric for metric in _METRICS}
"""Value of this package's entry point ``workbench.metrics``."""
