"""Every analysis that forms no matrix of tokens × tokens, on one layer at 32 768 tokens: CPU seconds and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from typing import Any

import torch

import workbench
from workbench.analyses.registry import ANALYSES as ANALYSES_BY_NAME
from workbench.core.children import python
from workbench.studies.training.measuring import memory_growth

TOKENS = 32_768
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
}
"""What is measured of a language model with random weights, with which options."""
SEVERAL = ("coding-rate", "membership")  # compare the heads of the values


def measure(name: str, tokens: int = TOKENS) -> dict[str, Any]:
    """Seconds, memory above the model and its bare pass, and what the frame says, in this process with one thread."""
    torch.set_num_threads(1)
    model, text = _layer(tokens, HEADS if name in SEVERAL else KV_HEADS)
    with torch.no_grad():
        model(**text)  # what the pass itself needs is there before
    made: list[Any] = []
    started, wall = time.process_time(), time.perf_counter()
    rise = memory_growth(lambda: made.append(_frame(name, model, text)))
    return {
        "cpu": time.process_time() - started,
        "wall": time.perf_counter() - wall,
        "memory": rise,
        "rows": len(made[0]),
        "notes": made[0].attrs["notes"],
    }


def _frame(name: str, model: torch.nn.Module, text: dict[str, torch.Tensor]) -> Any:
    inputs = text if ANALYSES_BY_NAME[name].sites else None  # else of weights
    return workbench.analyze(name, model=model, inputs=inputs, **ANALYSES[name])


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
        "benchmark": f"{name} at {TOKENS} tokens",
        "ratio": f"{found['cpu']:.0f} s, {found['memory'] / 1e6:.0f} MB",
        "aim": "≤ 1500 MB",
        "detail": f"{HEADS} heads, {KV_HEADS} of keys, width {HEAD_DIM}, causal, float32; CPU seconds of one thread "
        f"({found['wall']:.0f} s), memory above model and text; {found['rows']} rows; {' '.join(found['notes'])}",
    }


ROWS = {name: partial(_row, name) for name in ANALYSES}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else TOKENS)))
