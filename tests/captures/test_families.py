"""Capture of every supported family: exact, complete, and without a trace."""

from __future__ import annotations

import pytest
import torch

from tests.captures.families import FAMILIES, TEXT, VISION, Family, call, first_output, rest_of_block
from workbench.captures import SITES, attention_geometry, attention_modules, attention_output, capture

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
ROW_SUMS_DIFFER = {"cait"}


def real_rows(family: Family, batch) -> torch.Tensor | None:
    """(batch, token) of queries that are not padding."""
    return batch["attention_mask"].bool() if isinstance(batch, dict) else None


@every_family
def test_attention_is_what_the_model_computes_itself(family: Family):
    model, batch = family.build(), family.batch()
    own = family.own_attention(model, batch)
    captured = capture(model, batch, sites=("attn",))
    assert len(captured) == len(own) == family.layers
    real = real_rows(family, batch)
    for record, expected in zip(captured, own, strict=True):
        if expected is None:
            assert (record.kind, record.attn) == ("none", None)
            continue
        attn = record.attn[..., : expected.shape[-2], : expected.shape[-1]]
        if real is not None:  # what a padding query attends to depends on the kernel, and nobody reads it
            keep = torch.nn.functional.pad(real, (0, attn.shape[2] - real.shape[1]), value=True)
            attn, expected = (x.transpose(1, 2)[keep] for x in (attn, expected))
        torch.testing.assert_close(attn, expected, rtol=1e-5, atol=2e-6)


@every_family
def test_operands_are_the_projections_of_the_input(family: Family):
    model, batch = family.build(), family.batch()
    for record in capture(model, batch, sites=("input", "q", "k", "v")):
        with torch.no_grad():
            expected = family.project(model.get_submodule(record.path), record.input)
        for site, value in zip("qkv" if record.kind != "none" else "", expected, strict=True):
            # LUKE's entities stand behind the words, which are the module's first input.
            found = getattr(record, site)[:, :, : value.shape[2]]
            if family.rotated and site in "qk":
                assert not torch.allclose(found, value)
                found, value = found.norm(dim=-1), value.norm(dim=-1)
            torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-5)


@every_family
def test_operands_reproduce_the_output(family: Family):
    for record in capture(family.build(), family.batch()):
        if "global_tokens" in record.extra or record.kind == "none":
            continue  # two kinds of values, or no map; compared by the adapter's own rule during capture
        rebuilt = attention_output(record.attn, record.v, record.kind)
        torch.testing.assert_close(rebuilt, record.head_out, rtol=1e-4, atol=1e-4)


@every_family
def test_rows_sum_to_one_where_declared(family: Family):
    captured = capture(family.build(), family.batch())
    for record in captured:
        if record.rows_sum_to_one:
            sums = record.attn.sum(dim=-1)
            assert torch.all((sums - 1).abs().lt(1e-5) | sums.eq(0))
    mixed = {record.rows_sum_to_one for record in captured if record.kind != "none"}
    assert (False in mixed) == (family.name in ROW_SUMS_DIFFER)


@every_family
def test_the_model_is_left_as_found(family: Family):
    model, batch = family.build(), family.batch()
    before = first_output(call(model, batch))
    state = traces(model)
    captured = capture(model, batch, sites=SITES)
    assert traces(model) == state
    real = real_rows(family, batch)
    now = first_output(captured.result)
    if real is not None:
        before, now = before[real], now[real]
    assert (now - before).abs().max() <= 1e-6 * before.abs().max()
    assert not now.requires_grad
    after = first_output(call(model, batch))
    assert torch.equal(after if real is None else after[real], before)


def traces(model: torch.nn.Module) -> dict[str, object]:
    """Everything a capture might leave behind."""
    from transformers import AttentionInterface

    modules = dict(model.named_modules())
    configs = {name: getattr(m, "config", None) for name, m in modules.items()}
    return {
        "fused": {name: vars(m).get("fused_attn") for name, m in modules.items()},
        "training": {name: m.training for name, m in modules.items()},
        "hooks": {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in modules.items()},
        "attributes": {name: set(vars(m)) for name, m in modules.items()},
        "cache": {name: getattr(config, "use_cache", None) for name, config in configs.items()},
        "implementation": {
            name: getattr(config, "_attn_implementation", None) for name, config in configs.items()
        },
        "interface": AttentionInterface.get_interface,
        "functional": torch.nn.functional.scaled_dot_product_attention,
        "fastpath": torch.backends.mha.get_fastpath_enabled(),
        "grad": torch.is_grad_enabled(),
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "modes": torch._C._len_torch_function_stack(),
    }


@every_family
def test_the_model_is_left_as_found_after_an_exception(family: Family):
    model, batch = family.build(), family.batch()
    state = traces(model)
    last, _ = attention_modules(model)[-1]

    def explode(module, args):
        raise RuntimeError("in the middle")

    handle = model.get_submodule(last).register_forward_pre_hook(explode)
    with pytest.raises(RuntimeError, match="in the middle"):
        capture(model, batch, sites=SITES)
    handle.remove()
    assert traces(model) == state
    assert len(capture(model, batch)) == family.layers


@every_family
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(family: Family, dtype: torch.dtype):
    model, batch = family.build().to(dtype), family.batch()
    captured = capture(model, batch, sites=("q", "v", "attn", "head_out"))
    assert len(captured) == family.layers
    for record in captured:
        assert record.head_out.dtype == dtype
        if record.kind != "none":
            assert record.q.dtype == dtype
            assert record.attn.dtype == torch.float32


@every_family
def test_geometry_without_running(family: Family):
    model = family.build()
    layers, heads, widths = attention_geometry(model)
    captured = capture(model, family.batch(), sites=("head_out",))
    assert layers == len(captured)
    shapes = [(record.head_out.shape[1], record.head_out.shape[3]) for record in captured]
    heads = (heads,) * layers if isinstance(heads, int) else heads
    widths = (widths,) * layers if isinstance(widths, int) else widths
    assert list(zip(heads, widths, strict=True)) == shapes


def close(value: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((value - expected).abs().max() <= 1e-5 * expected.abs().max())


@every_family
def test_residual_stream(family: Family):
    """hidden is what the block returns; the second half of the block, applied to resid_mid, gives hidden."""
    model, batch = family.build(), family.batch()
    captured = capture(model, batch, sites=("resid_mid", "resid_post"))
    for record in captured:
        block = enclosing_block(model, record.path)
        outputs = []
        handle = block.register_forward_hook(lambda _, args, out, outputs=outputs: outputs.append(out))
        call(model, batch)
        handle.remove()
        output = outputs[record.call]
        if family.name == "luke-entities":
            output = torch.cat(output[:2], dim=1)
        output = output if isinstance(output, torch.Tensor) else output[0]
        assert record.resid_post.ndim == record.resid_mid.ndim == 3
        assert close(record.resid_post, output.reshape(record.resid_post.shape))
        with torch.no_grad():
            assert close(rest_of_block(block, record.resid_mid), record.resid_post)


def enclosing_block(model: torch.nn.Module, path: str) -> torch.nn.Module:
    """The longest prefix of a path that ends in a number: an item of a list of blocks."""
    parts = path.split(".")
    while not parts[-1].isdigit():
        parts.pop()
    return model.get_submodule(".".join(parts))


@pytest.mark.parametrize("family", VISION, ids=lambda family: family.name)
def test_vision_tokens_are_labelled(family: Family):
    captured = capture(family.build(), family.batch(), layers=-1, sites=("k",))
    kinds = captured.tokens.kinds[0]
    if family.name != "swin":  # the last layer of Swin sees windows
        assert len(kinds) == captured[-1].k.shape[2]
    rows, columns = captured.tokens.grid
    assert kinds.count("patch") == rows * columns
    assert kinds.count("distillation") == (family.name == "deit-distilled")
    assert kinds.count("class") == (family.name != "swin")


@pytest.mark.parametrize("family", TEXT[:-1], ids=lambda family: family.name)
def test_padding_gets_no_attention(family: Family):
    batch = family.batch()
    captured = capture(family.build(), batch, sites=("attn",))
    padding = ~captured.tokens.mask
    assert padding.any()
    for record in captured:
        seen = record.attn * padding[:, None, None, :]
        assert seen.transpose(1, 2)[captured.tokens.mask].max() == 0
