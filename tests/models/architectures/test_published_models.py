"""The models of wu2025 and CRATE from their authors' files: the same logits, every weight used or named."""

import dataclasses
import math
import os

import pytest
import torch
from safetensors.torch import save_file

import workbench
from tests.models.architectures.authors import (
    crate_logits,
    crate_shapes,
    random_state,
    tost_lm_logits,
    tost_lm_shapes,
    tost_logits,
    tost_shapes,
)
from tests.models.architectures.variants import count
from workbench.core.errors import InputError, UnknownName
from workbench.models.architectures import build
from workbench.models.architectures.published_models import PUBLISHED, by_layer, take

# width 24, depth 2, 3 heads of 8, 7 classes, an image of 3×3 patches: every size another
WIDTH, DEPTH, HEADS, CLASSES, SIDE = 24, 2, 3, 7, 48
VOCABULARY, CONTEXT = 13, 11
TOST = tost_shapes(WIDTH, DEPTH, HEADS, CLASSES)
LM = tost_lm_shapes(WIDTH, DEPTH, HEADS, VOCABULARY, CONTEXT)
CRATE = crate_shapes(WIDTH, DEPTH, CLASSES, tokens=10, pixels=768)
SHAPES = {"tost:tiny": TOST, "tost:base-lm": LM, "crate:tiny": CRATE}
MEDIUM_IN_PRINT = 68.1e6  # wu2025 Table 5; the authors' code gives 71.5M

unwrapped, in_a_dict, parallel = (
    lambda state: state,
    lambda state: {"model_ema": {"head.weight": torch.ones(1)}, "model": state, "epoch": 7},
    lambda state: {"model": {f"module.{name}": value for name, value in state.items()}, "epoch": 7},
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """The published sizes, made small: what is tested does not depend on them."""
    size = {"embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS}
    for spec in SHAPES:
        kind, _, name = spec.partition(":")
        published = PUBLISHED[kind][name]
        more = {} if name.endswith("lm") else {"img_size": SIDE, "num_classes": CLASSES}
        architecture = {**published.architecture, **size, **more}
        monkeypatch.setitem(PUBLISHED[kind], name, dataclasses.replace(published, architecture=architecture))


@pytest.fixture
def images():
    return torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def ids():
    return torch.randint(VOCABULARY, (2, CONTEXT - 2), generator=torch.Generator().manual_seed(1))


def stored(folder, spec, dtype=torch.float32, wrap=in_a_dict, **changes):
    """A file of random weights under the authors' names, and the weights; None as a change leaves one out."""
    state = {**random_state(SHAPES[spec], dtype), **changes}
    state = {name: value for name, value in state.items() if value is not None}
    torch.save(wrap(state), folder / "authors.pth")
    return folder / "authors.pth", state


def load(spec, path, **options):
    return workbench.load(spec, checkpoint=str(path), **options)


# The same numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_tost_gives_the_logits_of_its_formulas(dtype, tolerance, images, tmp_path):
    path, state = stored(tmp_path, "tost:tiny", dtype)
    model = load("tost:tiny", path)
    assert model.dtype == dtype
    expected = tost_logits(state, images.to(dtype))
    assert expected.std() > 0.1
    torch.testing.assert_close(model.module(images.to(dtype)), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_the_language_model_gives_the_logits_of_its_formulas(dtype, tolerance, ids, tmp_path):
    path, state = stored(tmp_path, "tost:base-lm", dtype)
    model = load("tost:base-lm", path)
    assert model.max_length == CONTEXT
    expected = tost_lm_logits(state, ids)
    assert expected.std() > 0.1
    torch.testing.assert_close(model.module(ids), expected, rtol=0, atol=tolerance)


def test_no_token_of_the_language_model_learns_of_later_ones(ids, tmp_path):
    model = load("tost:base-lm", stored(tmp_path, "tost:base-lm", torch.float64)[0]).module
    whole = model(ids)
    for length in (1, 4, CONTEXT - 2):
        torch.testing.assert_close(model(ids[:, :length]), whole[:, :length], rtol=0, atol=1e-12)
    changed = ids.clone()
    changed[:, 4] = (ids[:, 4] + 1) % VOCABULARY
    assert (model(changed)[:, 4:] != whole[:, 4:]).any(-1).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_crate_gives_the_logits_of_its_formulas(dtype, tolerance, images, tmp_path):
    path, state = stored(tmp_path, "crate:tiny", dtype)
    expected = crate_logits(state, images.to(dtype), HEADS, patch=16)
    assert expected.std() > 0.1
    found = load("crate:tiny", path).module(images.to(dtype))
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("spec", SHAPES)
@pytest.mark.parametrize("wrap", [unwrapped, in_a_dict, parallel])
def test_every_wrapping_gives_the_same_model(spec, wrap, tmp_path):
    first = load(spec, stored(tmp_path, spec)[0])
    path, state = stored(tmp_path, spec, wrap=wrap)
    assert load(spec, path).fingerprint == first.fingerprint
    assert load(spec, path).checkpoint == str(path)
    save_file(wrap(state).get("model", state), tmp_path / "authors.safetensors")
    assert load(spec, tmp_path / "authors.safetensors").fingerprint == first.fingerprint


def test_a_language_model_brings_its_own_vocabulary_context_and_perhaps_its_head(ids, tmp_path):
    path, state = stored(tmp_path, "tost:base-lm")
    expected = load("tost:base-lm", path).module(ids)
    assert expected.shape == (2, CONTEXT - 2, VOCABULARY)
    tied = {"lm_head.weight": state["transformer.wte.weight"].clone()}
    assert torch.equal(
        load("tost:base-lm", stored(tmp_path, "tost:base-lm", **tied)[0]).module(ids), expected
    )
    untied = {"lm_head.weight": state["transformer.wte.weight"] + 1}
    with pytest.raises(InputError, match=r"lm_head\.weight is not transformer\.wte\.weight again"):
        load("tost:base-lm", stored(tmp_path, "tost:base-lm", **untied)[0])


def test_a_language_model_without_any_bias_has_biases_of_zero(ids, tmp_path):
    zeros = {name: torch.zeros(shape) for name, shape in LM.items() if name.endswith(".bias")}
    expected = load("tost:base-lm", stored(tmp_path, "tost:base-lm", **zeros)[0]).module(ids)
    without = stored(tmp_path, "tost:base-lm", **dict.fromkeys(zeros))[0]
    assert torch.equal(load("tost:base-lm", without).module(ids), expected)


def test_a_text_model_of_another_vocabulary_has_no_tokenizer(tmp_path):
    model = load("tost:base-lm", stored(tmp_path, "tost:base-lm")[0])
    assert model.modality == "text"
    with pytest.raises(InputError, match="a vocabulary of 13 was not trained on GPT-2's 50257 tokens"):
        _ = model.tokenizer


# Strictly -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "gone", "said"),
    [
        ("tost:tiny", "blocks.1.attn.to_out.0.bias", r"lacks blocks\.1\.attn\.to_out\.0\.bias$"),
        ("tost:tiny", "blocks.0.gamma2", r"lacks blocks\.0\.gamma2$"),
        ("tost:tiny", "cls_attn_blocks.1.attn.qkv.weight", r"lacks cls_attn_blocks\.1\.attn\.qkv\.weight$"),
        ("tost:tiny", "head.bias", r"lacks head\.bias$"),
        ("tost:base-lm", "transformer.h.1.attn.c_proj.weight", r"lacks transformer\.h\.1\.attn\.c_proj\.weight$"),
        ("tost:base-lm", "transformer.h.0.mlp.c_proj.bias", r"lacks transformer\.h\.0\.mlp\.c_proj\.bias$"),
        ("crate:tiny", "transformer.layers.0.1.fn.weight", r"lacks transformer\.layers\.0\.1\.fn\.weight$"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_as_the_authors_name_it(spec, gone, said, tmp_path):
    with pytest.raises(InputError, match=said):
        load(spec, stored(tmp_path, spec, **{gone: None})[0])


@pytest.mark.parametrize("spec", SHAPES)
def test_what_is_not_part_of_the_model_is_named(spec, tmp_path):
    more = {"blocks.0.gamma3": torch.ones(3), "blocks.1.gamma3": torch.ones(3), "extra": torch.ones(2)}
    with pytest.raises(InputError, match=r"not part of the model are blocks\.0-1\.gamma3, extra$"):
        load(spec, stored(tmp_path, spec, **more)[0])


def test_weights_of_something_else_are_named_one_by_one(tmp_path):
    state = {"fc.weight": torch.ones(3, 2)}
    torch.save({"model": state}, tmp_path / "x.pth")
    with pytest.raises(InputError) as caught:
        load("tost:tiny", tmp_path / "x.pth")
    message = str(caught.value)
    for name in TOST:
        place = name.replace("blocks.0.", "blocks.0-1.").replace("blocks.1.", "blocks.0-1.")
        if "qkv" in name and name.startswith("cls"):
            place = place.replace("qkv", "q")  # as timm splits it
        place = place.replace("pos_embeder", "pos_embed")
        assert place in message or name.startswith("patch_embed"), name
    assert message.endswith("not part of the model are fc.weight")


def test_names_that_differ_in_their_layer_are_listed_together():
    names = ["blocks.0.a.0.b", "blocks.2.a.0.b", "blocks.1.a.0.b", "blocks.4.a.0.b", "norm.weight"]
    assert by_layer(names) == "blocks.0-2,4.a.0.b, norm.weight"


@pytest.mark.parametrize(("width", "depth"), [(384, 12), (WIDTH, 3), (40, DEPTH)])
def test_weights_of_another_size_are_refused_with_both(width, depth, tmp_path):
    with torch.device("meta"):
        shapes = tost_shapes(width, depth, 8, CLASSES)
    state = {name: torch.zeros(shape) for name, shape in shapes.items() if "mlp" not in name}
    torch.save({"model": state}, tmp_path / "x.pth")
    known = "; load it as tost:small" if (width, depth) == (384, 12) else ""
    wanted = rf"width {width} and depth {depth}, and tost:tiny is of width {WIDTH} and depth {DEPTH}{known}$"
    with pytest.raises(InputError, match=wanted):
        load("tost:tiny", tmp_path / "x.pth")


def test_weights_in_another_number_of_heads_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"blocks\.0\.attn\.temp is \(4, 1\) in the file and \(3, 1\)"):
        load("tost:tiny", stored(tmp_path, "tost:tiny", **{"blocks.0.attn.temp": torch.ones(4, 1)})[0])


@pytest.mark.parametrize(("spec", "head"), [("tost:tiny", "head"), ("crate:tiny", "mlp_head.1")])
def test_a_head_for_other_classes_is_left_out_and_said(spec, head, images, tmp_path):
    other = {f"{head}.weight": torch.ones(4, WIDTH), f"{head}.bias": torch.ones(4)}
    with pytest.warns(UserWarning, match=r"its head has 4 classes and the model's 7: it was left out"):
        model = load(spec, stored(tmp_path, spec, **other)[0])
    same = load(spec, stored(tmp_path, spec)[0])
    assert model.module(images.float()).shape == (2, CLASSES)
    for name, value in same.module.state_dict().items():
        assert torch.equal(model.module.state_dict()[name], value) != name.startswith("head."), name
    with pytest.warns(UserWarning, match="was left out"):
        assert load(spec, stored(tmp_path, spec, **other)[0]).fingerprint == model.fingerprint


class Surprise:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_file_that_would_run_code_is_refused(tmp_path):
    torch.save({"model": Surprise(tmp_path / "ran")}, tmp_path / "x.pth")
    with pytest.raises(InputError, match=r"was not read: .*mkdir"):
        load("tost:tiny", tmp_path / "x.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("tost:tinny", UnknownName, "size of tost 'tinny'; did you mean 'tiny'"),
        ("crate:medium", UnknownName, "size of crate 'medium'; choose from small, tiny"),
        ("tost:", InputError, "names no model"),
    ],
)
def test_sizes_that_do_not_exist(spec, error, message):
    with pytest.raises(error, match=message):
        workbench.load(spec)


# Without a file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["tost:tiny", "crate:tiny"])
def test_without_a_file_the_weights_are_random_and_say_so(spec):
    with pytest.warns(UserWarning, match=f"{spec} has random weights"):
        model = workbench.load(spec)
    assert model.checkpoint == "random"
    assert repr(model).startswith(f"<{spec} random weights: ")
    asked = [workbench.load(spec, pretrained=False), workbench.load(spec, checkpoint="random")]
    assert [other.identity for other in asked] == [model.identity] * 2


# The published sizes ------------------------------------------------------------------------------------------


def on_meta(architecture):
    with torch.device("meta"):
        return build(dict(architecture))


SIZES = {  # width, depth, heads, millions of weights as printed (wu2025 Tables 5 and 6; CRATE's Table 1)
    "tost:small": (384, 12, 8, 22.59),
    "tost:medium": (512, 24, 8, 71.48),
    "tost:medium-lm": (1024, 24, 16, 304),
    "tost:large-lm": (1280, 36, 20, 655),
    "crate:small": (576, 12, 12, 13.12),
}


@pytest.mark.parametrize("spec", SIZES)
def test_the_published_sizes(spec):
    kind, _, size = spec.partition(":")
    architecture = PUBLISHED[kind][size].architecture
    width, depth, heads, millions = SIZES[spec]
    assert [architecture[key] for key in ("embed_dim", "depth", "num_heads")] == [width, depth, heads]
    model = on_meta(architecture)
    # wu2025 counts language models without their positions
    positions = model.pos_embed.numel() if size.endswith("-lm") else 0
    digits = 2 if isinstance(millions, float) else 0
    assert round((count(model) - positions) / 1e6, digits) == pytest.approx(millions, abs=0.005)


def test_the_number_of_weights_of_tiny_small_and_medium(monkeypatch):
    monkeypatch.undo()
    sizes = {"tiny": 5_769_328, "small": 22_589_944, "medium": 71_481_064}
    for size, expected in sizes.items():
        published = PUBLISHED["tost"][size]
        model = on_meta(published.architecture)
        assert count(model) == expected
        numbers = [published.architecture[key] for key in ("embed_dim", "depth", "num_heads")]
        shapes = tost_shapes(*numbers, 1000)
        assert expected == sum(
            math.prod(shape)
            for name, shape in shapes.items()
            if "running" not in name and "num_b" not in name
        )
        state = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        found, left_out = take(published, model, state, "a file")
        assert {name: value.shape for name, value in found.items()} == {
            name: value.shape for name, value in model.state_dict().items()
        }
        assert left_out is None
    assert abs(sizes["medium"] - MEDIUM_IN_PRINT) > 3e6
    assert round(count(on_meta(PUBLISHED["crate"]["tiny"].architecture)) / 1e6, 2) == 6.09


def test_layer_scale_starts_at_one_in_twelve_layers_and_near_zero_in_more():
    for size in PUBLISHED["tost"].values():
        assert size.architecture["layer_scale"] == (1.0 if size.architecture["depth"] <= 12 else 1e-5)
    for depth, start in ((2, 1.0), (3, 1e-5)):
        model = build({"name": "tost", "depth": depth, "layer_scale": start})
        scales = [block.ls1.gamma for block in model.blocks] + [block.ls2.gamma for block in model.blocks]
        scales += [gamma for block in model.cls_attn_blocks for gamma in (block.gamma1, block.gamma2)]
        assert len(scales) == 2 * depth + 4
        assert all(torch.equal(scale, torch.full_like(scale, start)) for scale in scales)
