"""Memory of an analysis of attention through depth: layers measured as the model runs, against holding them all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from workbench.core.children import python

DEPTHS = (6, 12, 24)
TOKENS, HEADS, HEAD_DIM = 1025, 2, 8  # one attention map of all heads: 8.4 MB in float32
WAYS = ("bare", "analysis", "outputs")


def run() -> list[dict[str, Any]]:
    """Rise of resident memory of one forward pass, each in a process of its own, beside the bare forward's.

    ``output_attentions=True`` of transformers returns the maps of all layers, as one reads them today.
    """
    rises = {(way, depth): _in_process(way, depth) for way in WAYS for depth in DEPTHS}
    deepest, first = DEPTHS[-1], DEPTHS[0]
    detail = ", ".join(
        f"{way} {' / '.join(f'{rises[way, depth] / 1e6:.0f}' for depth in DEPTHS)} MB" for way in WAYS
    )
    shape = f"{' / '.join(map(str, DEPTHS))} layers, N = {TOKENS}, {HEADS} heads, one image"
    return [
        {
            "benchmark": "memory of attention-map against output_attentions=True",
            "ratio": f"{rises['analysis', deepest] / rises['outputs', deepest]:.2f}× at {deepest} layers",
            "aim": "one layer's, whatever the depth",
            "detail": f"{shape}: {detail}",
        },
        {
            "benchmark": f"memory of attention-map at {deepest} layers against {first}",
            "ratio": f"{rises['analysis', deepest] / rises['analysis', first]:.2f}×",
            "aim": "≤ 1.1×",
            "detail": f"output_attentions=True: {rises['outputs', deepest] / rises['outputs', first]:.2f}×",
        },
    ]


def _in_process(way: str, depth: int) -> float:
    command = python("-m", "benchmarks.bench_memory", way, str(depth))
    # what is freed goes back to the system at once, so that gaps between tensors do not count
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout)


def measure(way: str, depth: int) -> float:
    """Bytes by which resident memory rises in a pass, after one that loads what is needed."""
    import torch
    import transformers

    from workbench.runs.analyze import analyze
    from workbench.studies.training.cost_measures import memory_growth

    side = round((TOKENS - 1) ** 0.5)
    config = transformers.ViTConfig(
        hidden_size=HEADS * HEAD_DIM, num_hidden_layers=depth, num_attention_heads=HEADS,
        intermediate_size=2 * HEADS * HEAD_DIM, image_size=2 * side, patch_size=2,
        attn_implementation="eager" if way == "outputs" else "sdpa",
    )  # fmt: skip
    model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    pixels = torch.randn(1, 3, 2 * side, 2 * side)

    def forward() -> object:
        if way == "analysis":
            return analyze("attention-map", model=model, inputs=pixels, null_samples=0)
        with torch.no_grad():
            return model(pixels, output_attentions=way == "outputs")

    forward()
    return memory_growth(forward)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
