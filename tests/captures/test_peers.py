"""Captures and interventions of a tiny GPT-2, beside those of TransformerLens 4 and nnsight (`make peers`)."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from workbench import capture, intervene, load

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])
LAYER, HEAD, WIDTH = 1, 2, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=11,
        n_embd=12,
        n_layer=2,
        n_head=3,
        n_positions=8,
        bos_token_id=1,
        eos_token_id=1,
        initializer_range=0.3,
    )
    folder = tmp_path_factory.mktemp("gpt2")
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return load(f"hf:{folder}").module


@pytest.fixture(scope="module")
def lens(folder):
    bridge = pytest.importorskip(
        "transformer_lens.model_bridge", reason="not in the extra peers' environment"
    )
    return bridge.TransformerBridge.boot_transformers(str(folder), device="cpu")


@pytest.fixture(scope="module")
def traced(folder):
    nnsight = pytest.importorskip("nnsight", reason="not in the extra peers' environment")
    return nnsight.NNsight(GPT2LMHeadModel.from_pretrained(folder).eval())


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    """Assert that two tensors differ by at most 1e-6 of the largest value."""
    torch.testing.assert_close(one.detach(), other.detach(), rtol=0, atol=1e-6 * one.abs().max().item())


def changed(model, value, site: str, head: int | str = "*") -> torch.Tensor:
    with torch.no_grad(), intervene(model, {(LAYER, head): value}, site=site):
        return model(IDS).logits


def test_a_capture_holds_what_the_cache_of_transformer_lens_holds(model, lens):
    _, cache = lens.run_with_cache(IDS)
    sites = ("q", "k", "v", "attn", "head_out", "attn_out", "resid_pre", "resid_mid", "resid_post")
    record = capture(model, IDS, sites=sites)[LAYER]
    for site, hook in {"q": "q", "k": "k", "v": "v", "head_out": "z"}.items():
        ours = cache[f"blocks.{LAYER}.attn.hook_{hook}"].reshape(2, 7, 3, WIDTH).transpose(1, 2)
        close(getattr(record, site), ours)
    close(record.attn, cache[f"blocks.{LAYER}.attn.hook_pattern"])
    for site in ("attn_out", "resid_pre", "resid_mid", "resid_post"):
        close(getattr(record, site), cache[f"blocks.{LAYER}.hook_{site}"])


@pytest.mark.parametrize("value", ["zero", "mean", "donor"])
def test_a_changed_head_gives_the_logits_of_a_hook_of_transformer_lens(model, lens, value):
    _, cache = lens.run_with_cache(IDS.flip(0))

    def hook(z, hook):
        heads = z.clone().reshape(2, 7, 3, WIDTH)
        donor = cache[f"blocks.{LAYER}.attn.hook_z"].reshape(2, 7, 3, WIDTH)[:, :, HEAD]
        own = heads[:, :, HEAD]
        heads[:, :, HEAD] = {"zero": 0 * own, "mean": own.mean(1, keepdim=True), "donor": donor}[value]
        return heads.reshape(z.shape)

    theirs = lens.run_with_hooks(IDS, fwd_hooks=[(f"blocks.{LAYER}.attn.hook_z", hook)])
    given = capture(model, IDS.flip(0), sites=["head_out"]) if value == "donor" else value
    close(changed(model, given, "head_out", HEAD), theirs)


def test_a_changed_pattern_gives_the_logits_of_a_hook_of_transformer_lens(model, lens):
    def hook(pattern, hook):
        pattern = pattern.clone()
        pattern[:, HEAD] = torch.ones(7, 7).tril() / torch.arange(1, 8)[:, None]
        return pattern

    theirs = lens.run_with_hooks(IDS, fwd_hooks=[(f"blocks.{LAYER}.attn.hook_pattern", hook)])
    close(changed(model, "uniform", "attn", HEAD), theirs)


def test_a_changed_stream_gives_the_logits_of_a_hook_of_transformer_lens(model, lens):
    for site in ("resid_pre", "resid_post"):
        theirs = lens.run_with_hooks(
            IDS, fwd_hooks=[(f"blocks.{LAYER}.hook_{site}", lambda x, hook: x.flip(1))]
        )
        close(changed(model, lambda x: x.flip(1), site), theirs)


def test_changes_give_the_logits_of_a_trace_of_nnsight(model, traced):
    with traced.trace(IDS):
        block = traced.transformer.h[LAYER]
        block.attn.c_proj.input[..., HEAD * WIDTH : (HEAD + 1) * WIDTH] = 0
        theirs = traced.lm_head.output.save()
    close(changed(model, "zero", "head_out", HEAD), theirs)
    with traced.trace(IDS):
        traced.transformer.h[LAYER].ln_2.input[:] = 0.5 * traced.transformer.h[LAYER].ln_2.input
        theirs = traced.lm_head.output.save()
    close(changed(model, lambda stream: 0.5 * stream, "resid_mid"), theirs)
    with traced.trace(IDS):
        stream = traced.transformer.h[LAYER].ln_2.input.save()
    close(capture(model, IDS, sites=["resid_mid"])[LAYER].resid_mid, stream)
