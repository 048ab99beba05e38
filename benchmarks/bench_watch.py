"""Share of a real training's time that `workbench.watch` takes at its default cadence."""

from __future__ import annotations

import tempfile
import time
from typing import Any

STEPS, LOGGINGS, PROBE = 120, 4, 8


def run() -> list[dict[str, Any]]:
    """The digits ViT trained as its recipe says, batch 32, with everything that is watched by default.

    Seconds of a logging over those of ``EVERY`` steps, both medians of one run on one thread: what a step costs does
    not change between loggings, so that not every step between two of them has to be run.
    """
    import statistics

    import torch

    import workbench
    from workbench.runs.watch.core import ANALYSES_WATCHED, EVERY

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loaded = workbench.load("bundled:digits-vit@epoch-000")
    model = loaded.module.train().requires_grad_(True)
    given = workbench.inputs("bundled:digits-train", loaded, n=32)
    targets = torch.tensor(given.targets)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    steps: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        watch = workbench.watch(model, given[:PROBE], out=folder, every=STEPS // LOGGINGS, max_cost=None)
        watch.step(0)  # loads what the analyses need: not part of the cadence
        for step in range(1, STEPS + 1):
            started = time.perf_counter()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(given.batch), targets).backward()
            optimizer.step()
            steps.append(time.perf_counter() - started)
            watch.step(step)
    torch.set_num_threads(threads)
    one, logging = statistics.median(steps), statistics.median(watch.costs[1:])
    return [
        {
            "benchmark": "watch at its default cadence",
            "ratio": f"{logging / (EVERY * one + logging):.1%}",
            "aim": "≤ 3 %",
            "detail": f"digits-vit, batch 32, a step {1000 * one:.0f} ms; {', '.join(ANALYSES_WATCHED)} of {PROBE} "
            f"inputs {logging:.2f} s, every {EVERY} steps",
        }
    ]
