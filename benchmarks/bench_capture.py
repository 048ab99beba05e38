"""Capture and interventions against the bare forward pass of a ViT, a GPT-2 and a model with attention written out.

Beside them what transformers' ``output_attentions`` costs, which needs eager attention, and, where it is installed,
nnsight with the outputs of the projections saved.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable
from typing import Any

ROUNDS = 15


def run() -> list[dict[str, Any]]:
    """Median over interleaved rounds of (time with capture / time of the bare forward in the same round).

    CPU seconds on one thread, so that what else the machine does falls out of the ratio.
    """
    import timm
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, GPTJConfig, GPTJForCausalLM

    from workbench.runs.analyze import analyze

    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    vit = timm.create_model("vit_small_patch16_224").eval()
    images = torch.randn(8, 3, 224, 224)

    def similarity() -> None:
        analyze("token-similarity", model=vit, inputs=images, per_input=False)

    others = {("token similarity of every block", 1.15): similarity} | _by_hand(vit, images)
    rows = _ratios("vit_small_patch16_224, batch 8", vit, images, others)
    ids = torch.randint(0, 50257, (2, 128))
    gpt2 = GPT2LMHeadModel(GPT2Config()).eval()
    rows += _ratios("GPT-2 (124 M), 2 × 128 tokens", gpt2, ids, _others(gpt2, ids))
    config = GPTJConfig(n_embd=768, n_layer=6, n_head=12, rotary_dim=32, vocab_size=50257, n_positions=256)
    written_out = GPTJForCausalLM(config).eval()
    rows += _ratios(
        "GPT-J of 6 layers of width 768, attention written out, 2 × 128 tokens", written_out, ids, {}
    )
    torch.set_num_threads(threads)
    return rows


def _ratios(
    detail: str, model: Any, batch: Any, others: dict[tuple[str, float | None], Callable[[], None]]
) -> list[dict[str, Any]]:
    import torch

    from workbench.captures import capture, intervene
    from workbench.studies.training.cost_measures import in_turns

    def bare() -> None:
        with torch.no_grad():
            model(batch)

    def operands() -> None:
        capture(model, batch, sites=("q", "k", "v"))

    def everything() -> None:
        capture(model, batch)

    def explicit() -> None:
        capture(model, batch, explicit=True)

    def changed(value: str, site: str) -> None:
        with torch.no_grad(), intervene(model, {(1, 1): value}, site=site):
            model(batch)

    named = {
        ("one head without its output", 1.1): lambda: changed("zero", "head_out"),
        ("one head with uniform attention", 1.1): lambda: changed("uniform", "attn"),
        ("capture of q, k, v", 1.05): operands,
        ("capture with attn and checks", 1.2): everything,
        ("the same with explicit=True", 1.05): explicit,
    } | others
    times = in_turns([bare, *named.values()], ROUNDS)
    detail += f", bare forward {statistics.median(times[0]):.2f} s of CPU"
    return [
        {
            "benchmark": name,
            "ratio": f"{statistics.median(s / f for s, f in zip(own, times[0], strict=True)):.2f}×",
            "aim": f"≤ {aim}×" if aim else "",
            "detail": detail,
        }
        for (name, aim), own in zip(named, times[1:], strict=True)
    ]


def _by_hand(model: Any, batch: Any) -> dict[tuple[str, float | None], Callable[[], None]]:
    """What a hook costs that keeps what ``qkv`` gives, and one that also computes and keeps the weights: the floor."""
    import torch

    def keeping(weights: bool) -> None:
        kept: list[Any] = []

        def hook(module: Any, _: Any, output: Any) -> None:
            kept.append(output)
            if weights:
                q, k, _ = output.unflatten(2, (3, module.heads, -1)).permute(2, 0, 3, 1, 4)
                kept.append(torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1))

        handles = []
        for block in model.blocks:
            block.attn.qkv.heads = block.attn.num_heads
            handles.append(block.attn.qkv.register_forward_hook(hook))
        with torch.no_grad():
            model(batch)
        for handle in handles:
            handle.remove()

    return {
        ("a hook that keeps q, k, v, nothing checked", None): lambda: keeping(False),
        ("a hook that keeps them and the weights, nothing checked", None): lambda: keeping(True),
    }


def _others(model: Any, ids: Any) -> dict[tuple[str, float | None], Callable[[], None]]:
    """What other ways to the same cost: the weights by transformers, the projections by nnsight."""
    import copy

    import torch

    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")

    def attentions() -> None:
        with torch.no_grad():
            eager(ids, output_attentions=True)

    ways: dict[tuple[str, float | None], Callable[[], None]] = {
        ("output_attentions of transformers, run eagerly", None): attentions
    }
    if importlib.util.find_spec("nnsight") is None:
        return ways
    from nnsight import NNsight

    traced = NNsight(model)

    def saved() -> None:
        kept = []
        with torch.no_grad(), traced.trace(ids):
            for block in traced.transformer.h:
                kept.append(block.attn.c_attn.output.save())

    return ways | {("nnsight, outputs of c_attn saved", None): saved}
