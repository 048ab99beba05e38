"""What `head-effect` costs beside as many passes of the model as it has heads to switch off."""

from __future__ import annotations

import statistics
from typing import Any

LAYERS, ROUNDS = (5, 6), 2


def run() -> list[dict[str, Any]]:
    """A random GPT-2 (124 M) on 128 tokens, two of its layers: 24 heads, CPU seconds of one thread."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import workbench
    from workbench.studies.training.cost_measures import in_turns

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config()
    model, heads = GPT2LMHeadModel(config).eval(), len(LAYERS) * config.n_head
    ids = torch.randint(config.vocab_size, (1, 128))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def passes() -> None:
        with torch.no_grad():
            for _ in range(heads):
                model(**batch)

    def effects() -> None:
        workbench.analyze("head-effect", model, batch, layers=[*LAYERS], null_samples=0)

    bare, own = in_turns([passes, effects], ROUNDS)
    torch.set_num_threads(threads)
    ratio = statistics.median(effect / alone for effect, alone in zip(own, bare, strict=True))
    return [
        {
            "benchmark": "`head-effect` of some heads against as many bare passes",
            "ratio": f"{ratio:.2f}×",
            "aim": "≤ 1.0×",
            "detail": f"GPT-2 (124 M), 128 tokens, {heads} heads of two layers, no null; bare "
            f"{statistics.median(bare):.0f} s of CPU",
        }
    ]
