"""Memory of capturing a model of the shape of seven billion weights, layer by layer, over the bare forward pass's.

Four layers of a Llama 7B share the weights of one, random and in float32, so that a small machine holds them: what a
pass adds to the weights is that of the four.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from workbench.core.children import python

DEPTH, TOKENS = 4, 256
WAYS = {
    "bare": None,
    "q, k, v layer by layer": ("q", "k", "v"),
    "attn and all checks layer by layer": ("q", "k", "v", "attn", "head_out"),
    "q, k, v of all layers at once": ("q", "k", "v"),
}


def run() -> list[dict[str, Any]]:
    """Rise of resident memory of one pass, each in a process of its own, and its seconds beside the bare ones."""
    measured = {way: _in_process(way) for way in WAYS}
    bare, seconds = measured.pop("bare")
    return [
        {
            "benchmark": f"memory of a Llama 7B's {way}, over the bare forward's",
            "ratio": f"{(rise - bare) / 1e6:+.0f} MB",
            "aim": "one layer's",
            "detail": f"{DEPTH} of its 32 layers, {TOKENS} tokens, float32; the bare pass adds {bare / 1e6:.0f} MB to "
            f"the weights, this one {rise / 1e6:.0f} MB, in {taken / seconds:.2f}× the time",
        }
        for way, (rise, taken) in measured.items()
    ]


def _in_process(way: str) -> tuple[float, float]:
    command = python("-m", "benchmarks.bench_large", way)
    # what is freed goes back to the system at once, so that gaps between tensors do not count
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return tuple(json.loads(done.stdout))


def measure(way: str) -> tuple[float, float]:
    """Bytes by which resident memory rises in a pass, and its seconds, after a short one that loads what is needed."""
    import torch

    from workbench.captures import capture
    from workbench.studies.training.measuring import memory_growth

    model = llama()
    sites = WAYS[way]

    def forward(tokens: int) -> object:
        ids = torch.arange(tokens)[None]
        if sites is None:
            with torch.no_grad():
                return model(ids, use_cache=False)
        each = None if "at once" in way else lambda layer, tokens: None
        return capture(model, ids, sites=sites, each=each)

    forward(4)
    start = time.perf_counter()
    rise = memory_growth(lambda: forward(TOKENS))
    return rise, time.perf_counter() - start


def llama() -> Any:
    """Layers of a Llama 7B that share one set of random weights."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    with torch.device("meta"):
        model = LlamaModel(LlamaConfig(num_hidden_layers=DEPTH)).eval()
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
                setattr(layer.get_submodule(path), name, parameter)
    return model


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
