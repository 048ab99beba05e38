"""Every analysis that forms no matrix of tokens × tokens, on one layer at 32 768 tokens: CPU seconds and memory.

Two are of images alone: theirs is of 181 × 181 pixels, a patch each, which with the class token is 32 762 tokens.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from functools import partial
from typing import Any

import torch

import workbench
from workbench.analyses.registry import ANALYSES as ANALYSES_BY_NAME
from workbench.captures import TokenInfo
from workbench.core.children import python
from workbench.data.batches import Inputs
from workbench.models.architectures.vit import build_vit
from workbench.studies.training.cost_measures import memory_growth

TOKENS, SIDE = 32_768, 181
HEADS, KV_HEADS, HEAD_DIM = 2, 1, 64
ANALYSES: dict[str, dict[str, Any]] = {
    "attention-map": {"null_samples": 0},
    "attention-patterns": {},
    "class-attention": {},
    "gram-spectrum": {},
    "value-similarity": {"null_samples": 0},
    "eigenvector-test": {"null_samples": 0},
    "projection-error": {"null_samples": 0},
    "attention-spectrum": {"null_samples": 0, "max_rank": 8},
    "softmax-sensitivity": {"null_samples": 0},
    "token-similarity": {},
    "coding-rate": {},
    "membership": {},
    "subspaces": {},
    "snr": {},
    "robust-components": {},
}
"""What is measured of a model with random weights, with which options."""
IMAGES = {"snr": "softmax", "robust-components": "rpc-sym"}
"""What is measured of a vision transformer, and its attention; everything else of a language model."""
SEVERAL = ("coding-rate", "membership")  # compare the heads of the values


def measure(name: str, tokens: int = TOKENS) -> dict[str, Any]:
    """Seconds, memory above the model and its bare pass, and what the frame says, in this process with one thread."""
    torch.set_num_threads(1)
    if name in IMAGES:
        model, inputs = _vit(IMAGES[name], SIDE if tokens == TOKENS else math.isqrt(tokens))
    else:
        model, inputs = _layer(tokens, HEADS if name in SEVERAL else KV_HEADS)
    with torch.no_grad():  # what the pass itself needs is there before
        model(inputs.batch) if isinstance(inputs, Inputs) else model(**inputs)
    made: list[Any] = []
    started, wall = time.process_time(), time.perf_counter()
    rise = memory_growth(lambda: made.append(_frame(name, model, inputs)))
    return {
        "cpu": time.process_time() - started,
        "wall": time.perf_counter() - wall,
        "memory": rise,
        "rows": len(made[0]),
        "notes": made[0].attrs["notes"],
    }


def _frame(name: str, model: torch.nn.Module, inputs: Any) -> Any:
    given = inputs if ANALYSES_BY_NAME[name].sites else None  # else of weights
    return workbench.analyze(name, model=model, inputs=given, **ANALYSES[name])


def _vit(attention: str, side: int) -> tuple[torch.nn.Module, Inputs]:
    """A vision transformer of one layer whose patches are single pixels, and a random image of as many."""
    torch.manual_seed(0)
    model = build_vit(
        img_size=side, patch_size=1, embed_dim=HEADS * HEAD_DIM, depth=1, num_heads=HEADS, mlp_ratio=1,
        attention=attention,
    ).eval()  # fmt: skip
    kinds = ["class", *["patch"] * side**2]
    tokens = TokenInfo([kinds], [kinds], (side, side), torch.ones(1, len(kinds), dtype=torch.bool))
    image = torch.rand(1, 1, side, side, generator=torch.manual_seed(0))
    given = Inputs(
        "random", 1, 0, "none", ["random/0"], image, tokens, normalization=((0.0,), (1.0,)), digests=[b""]
    )
    return model, given


def _layer(tokens: int, kv_heads: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A language model of one layer, rotary positions and grouped queries, and a text of as many tokens."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=HEADS * HEAD_DIM, num_hidden_layers=1, num_attention_heads=HEADS,
        num_key_value_heads=kv_heads, intermediate_size=HEAD_DIM, max_position_embeddings=TOKENS,
        initializer_range=0.2,
    )  # fmt: skip
    ids = torch.randint(256, (1, tokens), generator=torch.manual_seed(0))
    return transformers.LlamaModel(config).eval(), {"input_ids": ids}


def _row(name: str) -> dict[str, Any]:
    # what is freed goes back to the system at once, so that gaps between tensors do not count
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
    command = python("-m", "benchmarks.bench_long", name)
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout)
    return {
        "benchmark": f"{name} at {SIDE**2 + 1 if name in IMAGES else TOKENS} tokens",
        "ratio": f"{found['cpu']:.0f} s, {found['memory'] / 1e6:.0f} MB",
        "aim": "≤ 1500 MB",
        "detail": f"{_heads(name)}, width {HEAD_DIM}, float32; CPU seconds of one thread ({found['wall']:.0f} s), "
        f"memory above model and input; {found['rows']} rows; {' '.join(found['notes'])}",
    }


def _heads(name: str) -> str:
    if name in IMAGES:
        return f"{HEADS} heads of {IMAGES[name]} attention"
    return f"{HEADS} heads, {HEADS if name in SEVERAL else KV_HEADS} of keys, causal"


ROWS = {name: partial(_row, name) for name in ANALYSES}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else TOKENS)))
