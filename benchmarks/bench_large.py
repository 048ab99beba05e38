"""Memory of capturing a model of the shape of seven billion weights, layer by layer, over the bare forward pass's.

Four layers of a Llama 7B share the weights of one, random and in float32, so that a small machine holds them: what a
pass adds to the weights is that of the four. Then in bfloat16 as many layers as fit in half of the memory that is free,
each with weights of its own, where the largest resident size of the whole process is compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from workbench.core.children import python

DEPTH, TOKENS, FEWER = 4, 256, 64
WAYS = {
    "bare": None,
    "q, k, v layer by layer": ("q", "k", "v"),
    "attn and all checks layer by layer": ("q", "k", "v", "attn", "head_out"),
    "q, k, v of all layers at once": ("q", "k", "v"),
}
LAYER = 405e6
"""Bytes of a layer's weights in bfloat16."""


def run() -> list[dict[str, Any]]:
    """Rise of resident memory of one pass, each in a process of its own, and its seconds beside the bare ones."""
    measured = {way: _in_process(way) for way in WAYS}
    bare, seconds = measured.pop("bare")
    depth = min(32, int(available_memory() / 2 / LAYER))
    whole = {way: _in_process(way, str(depth)) for way in ("bare", "attn and all checks layer by layer")}
    rows = [
        {
            "benchmark": f"memory of a Llama 7B's {way}, over the bare forward's",
            "ratio": f"{(rise - bare) / 1e6:+.0f} MB",
            "aim": "one layer's",
            "detail": f"{DEPTH} of its 32 layers, {TOKENS} tokens, float32; the bare pass adds {bare / 1e6:.0f} MB to "
            f"the weights, this one {rise / 1e6:.0f} MB, in {taken / seconds:.2f}× the time",
        }
        for way, (rise, taken) in measured.items()
    ]
    (peak, bare_seconds), (with_capture, its_seconds) = whole.values()
    return [
        *rows,
        {
            "benchmark": f"largest resident size with {depth} layers of weights of their own, with attn and all checks "
            "layer by layer, over the bare forward's",
            "ratio": f"{with_capture / peak:.3f}×",
            "aim": "one layer's",
            "detail": f"{depth} of its 32 layers, {FEWER} tokens, bfloat16; {with_capture / 1e9:.2f} GB against "
            f"{peak / 1e9:.2f} GB ({(with_capture - peak) / 1e6:+.0f} MB), "
            f"in {its_seconds / bare_seconds:.2f}× the time",
        },
    ]


def available_memory() -> float:
    """Bytes that a process may still take, as Linux says, and 10 GB at most."""
    with open("/proc/meminfo") as lines:
        found = next(line for line in lines if line.startswith("MemAvailable"))
    return min(10e9, int(found.split()[1]) * 1024)


def _in_process(way: str, *depth: str) -> tuple[float, float]:
    command = python("-m", "benchmarks.bench_large", way, *depth)
    # what is freed goes back to the system at once, so that gaps between tensors do not count
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return tuple(json.loads(done.stdout))


def measure(way: str, depth: int = 0) -> tuple[float, float]:
    """Bytes by which resident memory rises in a pass, and its CPU seconds, after a short one that loads what is needed.

    With ``depth`` so many layers in bfloat16, and the largest resident size of the process.
    """
    import torch

    from workbench.captures import capture
    from workbench.studies.training.cost_measures import memory_growth, peak_memory

    model = llama(depth)
    sites = WAYS[way]

    def forward(tokens: int) -> object:
        ids = torch.arange(tokens)[None]
        if sites is None:
            with torch.no_grad():
                return model(ids, use_cache=False)
        each = None if "at once" in way else lambda layer, tokens: None
        return capture(model, ids, sites=sites, each=each)

    forward(4)
    start = time.process_time()
    rise = memory_growth(lambda: forward(FEWER if depth else TOKENS))
    seconds = time.process_time() - start
    return peak_memory(torch.device("cpu")) if depth else rise, seconds


def llama(depth: int = 0) -> Any:
    """Layers of a Llama 7B that share one set of random weights; with ``depth`` so many, of their own, in bfloat16."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    with torch.device("meta"):
        model = LlamaModel(LlamaConfig(num_hidden_layers=depth or DEPTH)).eval()
    if depth:
        model = model.to(torch.bfloat16)
    torch.manual_seed(0)
    first = model.layers[0]
    for module in (model.embed_tokens, model.norm, first):
        module.to_empty(device="cpu")
        for parameter in module.parameters():
            torch.nn.init.uniform_(parameter, -0.03, 0.03)
    model.rotary_emb = type(model.rotary_emb)(model.config)  # its frequencies are no weights
    for layer in model.layers[1:]:
        for path, child in first.named_modules():
            for name, parameter in child.named_parameters(recurse=False):
                shared = torch.nn.Parameter(parameter.clone()) if depth else parameter
                setattr(layer.get_submodule(path), name, shared)
    return model


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], *map(int, sys.argv[2:]))))
