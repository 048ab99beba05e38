"""Capture of a ViT-S/16, and a pass of token similarity, against its bare fused forward pass, batch of 8."""

from __future__ import annotations

import statistics
from typing import Any

BATCH, ROUNDS = 8, 15


def run() -> list[dict[str, Any]]:
    """Median over interleaved rounds of (time with capture / time of the bare forward in the same round).

    CPU seconds on one thread, so that what else the machine does falls out of the ratio.
    """
    import timm
    import torch

    from workbench.captures import capture
    from workbench.runs.analyze import analyze
    from workbench.studies.training.measuring import in_turns

    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch16_224").eval()
    images = torch.randn(BATCH, 3, 224, 224)

    def bare() -> None:
        with torch.no_grad():
            model(images)

    def operands() -> None:
        capture(model, images, sites=("q", "k", "v"))

    def everything() -> None:
        capture(model, images)

    def similarity() -> None:
        analyze("token-similarity", model=model, inputs=images, per_input=False)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = in_turns([bare, operands, everything, similarity], ROUNDS)
    torch.set_num_threads(threads)
    detail = f"vit_small_patch16_224, batch {BATCH}, bare forward {statistics.median(times[0]):.2f} s of CPU"
    return [
        {
            "benchmark": name,
            "ratio": f"{statistics.median(s / f for s, f in zip(times[i], times[0], strict=True)):.2f}×",
            "aim": f"≤ {aim}×",
            "detail": detail,
        }
        for i, name, aim in (
            (1, "capture of q, k, v", 1.05),
            (2, "capture with attn and checks", 1.25),
            (3, "token similarity of every block", 1.15),
        )
    ]
