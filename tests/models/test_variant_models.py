"""Checkpoints with attention variants and boosted residuals: loaded, captured and analysed like any model."""

import json

import pytest
import torch

import workbench
from tests.models.architectures.variants import OPTIONS
from workbench.attention import VARIANTS
from workbench.captures import SITES
from workbench.core.errors import InputError
from workbench.models.architectures import build
from workbench.models.checkpoints import write_checkpoint

# "digits" images are 16×16: patches of 4 make 16 tokens and a class token.
VIT = {"name": "vit", "patch_size": 4, "embed_dim": 12, "num_heads": 3, "depth": 2, "mlp_ratio": 2.0}
LM = {"name": "lm", "context": 24, "embed_dim": 12, "num_heads": 3, "depth": 2, "mlp_ratio": 2.0}
SEQUENCE = {**LM, "name": "sequence", "vocabulary": 258, "num_classes": 5}
ARCHITECTURES = {"vit": VIT, "lm": LM, "sequence": SEQUENCE}
CHARACTERS = " !\"',-.0123456789:;=?ABCDEFGHIJKLMNOPQRSTUVWYabcdefghijklmnopqrstuvwxyz\n"
MEANING = {
    "vit": {"resize": 16, "interpolation": "bilinear", "mean": [0.3], "std": [0.35]},
    "lm": {"characters": CHARACTERS},
    "sequence": {"tokens": "bytes"},
}
EVERYWHERE = [
    (kind, name)
    for kind in ("vit", "sequence")
    for name, variant in VARIANTS.items()
    if variant.causality != "always"
]
EVERYWHERE += [("lm", name) for name, variant in VARIANTS.items() if variant.causality != "never"]


def stored(folder, kind, name, **changes):
    """A checkpoint of random weights, none of them at the special value it starts at."""
    torch.manual_seed(0)
    description = {
        **ARCHITECTURES[kind],
        "attention": name,
        "attention_options": OPTIONS.get(name),
    }
    description = json.loads(json.dumps(description | changes))
    module = build(description)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    path = folder / "epoch-003.safetensors"
    write_checkpoint(path, module, {"architecture": description, "preprocessing": MEANING[kind]})
    return path, module.eval()


def some(model, n=2):
    if model.modality == "image":
        return workbench.inputs("bundled:digits", model, n=n)
    return workbench.inputs("bundled:prose", model, n=n)


@pytest.mark.parametrize("boost", [False, True])
@pytest.mark.parametrize(("kind", "name"), EVERYWHERE)
def test_every_variant_is_loaded_and_captured(kind, name, boost, tmp_path):
    path, module = stored(tmp_path, kind, name, boost=boost)
    model = workbench.load(f"file:{path}")
    assert (model.family, model.checkpoint) == (kind, "epoch-003")
    assert (model.num_layers, model.num_heads, model.head_dim) == (2, 3, 4)
    inputs = some(model)
    capture = workbench.capture(model, inputs, sites=SITES)
    batch = inputs.batch if isinstance(inputs.batch, dict) else {"x": inputs.batch}
    torch.testing.assert_close(capture.result, module(**batch))
    assert {record.kind for record in capture} == {VARIANTS[name].attends}
    for record, block in zip(capture, model.module.blocks, strict=True):
        rest = record.resid_mid + block.mlp(block.norm2(record.resid_mid))
        torch.testing.assert_close(record.resid_post, rest)


@pytest.mark.parametrize("kind", ["vit", "lm", "sequence"])
@pytest.mark.parametrize("name", ["rpc-sym", "bilateral", "alibi", "twicing"])
def test_an_analysis_runs_on_a_checkpoint(kind, name, tmp_path):
    path, _ = stored(tmp_path, kind, name, boost=True)
    model = workbench.load(f"file:{path}")
    spectrum = workbench.analyze("gram-spectrum", model=model, inputs=some(model))
    assert set(spectrum["layer"].dropna()) == {0, 1}
    assert spectrum["value"].notna().all()


TOST = {"name": "tost", "img_size": 16, "patch_size": 4, "embed_dim": 12, "num_heads": 3, "depth": 2}


@pytest.mark.parametrize("name", ["tost", "xcit"])
def test_a_model_that_ends_in_class_attention_is_captured_and_analysed(name, tmp_path):
    torch.manual_seed(0)
    module = build(description := {**TOST, "name": name})
    path = tmp_path / "epoch-003.safetensors"
    write_checkpoint(path, module, {"architecture": description, "preprocessing": MEANING["vit"]})
    model = workbench.load(f"file:{path}")
    assert (model.family, model.num_layers, model.num_heads, model.head_dim) == (name, 4, 3, 4)
    inputs = some(model)
    capture = workbench.capture(model, inputs, sites=SITES)
    torch.testing.assert_close(capture.result, module.eval()(inputs.batch))
    inside = {"tost": "none", "xcit": "channel"}[name]
    assert [record.kind for record in capture] == [inside, inside, "token", "token"]
    similarity = workbench.analyze("token-similarity", model=model, inputs=inputs)
    assert set(similarity["layer"].dropna()) == {0, 1, 2, 3}
    assert similarity["value"].notna().all()


def test_tost_is_looked_into_like_a_pretrained_model():
    model = workbench.load("tost:tiny", pretrained=False)
    assert (model.num_layers, model.num_heads, model.head_dim) == (14, 4, 48)
    assert model.image.size == (224, 224)
    inputs = workbench.inputs("bundled:photos", model, n=2)
    capture = workbench.capture(model, inputs, sites=SITES)
    assert [record.kind for record in capture] == ["none"] * 12 + ["token"] * 2
    for record in capture.layers[:12]:
        assert record.head_out.shape == (2, 4, 196, 48)  # the class token joins behind them
        assert record.resid_post.shape == (2, 196, 192)
        torch.testing.assert_close(record.membership.sum(1), torch.ones(2, 196))
    for record in capture.layers[12:]:
        assert record.attn.shape == (2, 4, 1, 197)  # the class token alone asks
        torch.testing.assert_close(record.attn.sum(-1), torch.ones(2, 4, 1))
    assert capture.tokens.grid == (14, 14)
    assert capture.tokens.kinds[0] == ["class", *["patch"] * 196]
    maps = workbench.analyze("attention-map", model=model, inputs=inputs)
    assert set(maps["layer"].dropna()) == {12, 13}
    assert "layers 0-11 left out: mixes tokens without attention from token to token" in maps.attrs["notes"]
    assert set(maps["checkpoint"]) == {"random"}


def test_a_language_model_reads_texts_as_characters(tmp_path):
    path, _ = stored(tmp_path, "lm", "softmax")
    model = workbench.load(f"file:{path}")
    assert (model.modality, model.max_length) == ("text", 24)
    inputs = some(model)
    assert inputs.batch["input_ids"].shape == (2, 24)
    assert ["".join(row) for row in inputs.tokens.labels] == [text[:24] for text in inputs.texts]
    assert set(inputs.tokens.kinds[0]) == {"word"}


@pytest.mark.parametrize("kind", ["lm", "sequence"])
def test_another_attention_is_put_into_a_model_that_reads_texts(kind, tmp_path):
    path, _ = stored(tmp_path, kind, "softmax")
    model = workbench.load(f"file:{path}")
    with workbench.replace_attention(model, "scaled-free", layers=[1]):
        assert model.module.blocks[1].attn.num_tokens == 24
        capture = workbench.capture(model, some(model))
        assert capture[1].extra["projected_v"].shape == (2, 3, 24, 4)


def test_short_texts_are_padded_and_what_is_real_does_not_notice(tmp_path):
    path, module = stored(tmp_path, "lm", "bilateral")
    model = workbench.load(f"file:{path}")
    batch = model.tokenizer(["a harbour", "tea"], padding=True, return_tensors="pt")
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    capture = workbench.capture(model, batch)
    assert not capture[0].attn[1, :, :, 3:].any()
    alone = module(model.tokenizer("tea", return_tensors="pt")["input_ids"])
    torch.testing.assert_close(capture.result[1:, :3], alone)


def test_a_text_beyond_the_model_is_refused(tmp_path):
    path, _ = stored(tmp_path, "lm", "softmax")
    model = workbench.load(f"file:{path}")
    with pytest.raises(InputError, match="takes at most 24 tokens"):
        workbench.inputs("bundled:prose", model, n=1, max_length=25)
    free, _ = stored(tmp_path, "lm", "alibi")
    model = workbench.load(f"file:{free}")
    assert model.max_length is None
    assert workbench.inputs("bundled:prose", model, n=1, max_length=40).batch["input_ids"].shape == (1, 40)


def test_bilateral_positions_are_precomputed_on_loading(tmp_path):
    path, module = stored(tmp_path, "vit", "bilateral")
    model = workbench.load(f"file:{path}", dtype="float64")
    terms = [block.attn.position_term for block in model.module.blocks]
    assert [(term.dtype, tuple(term.shape)) for term in terms] == [(torch.float64, (3, 17, 17))] * 2
    images = torch.randn(2, 1, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(model.module(images), module.double()(images), rtol=1e-5, atol=1e-6)


def test_random_weights_of_a_shared_parameter(tmp_path):
    path, _ = stored(tmp_path, "lm", "bilateral")
    model = workbench.load(f"file:{path}", pretrained=False)
    first, second = (block.attn.positions for block in model.module.blocks)
    assert model.checkpoint == "random"
    assert first is second


def test_a_vocabulary_of_another_model_is_refused(tmp_path):
    _, module = stored(tmp_path, "lm", "softmax")
    path = tmp_path / "other.safetensors"
    write_checkpoint(path, module, {"architecture": LM, "preprocessing": {"characters": "abc"}})
    with pytest.raises(InputError, match=r"3 characters, .* make 5 tokens, but its model knows 74"):
        workbench.load(f"file:{path}")
