"""One spec for a model with its options and weights; files of weights as people have them; modules of one's own."""

import copy
import os
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from tests.folders import bert_folder, vit_folder
from workbench import analyze, analyze_many, inputs, load, wrap
from workbench.core.errors import InputError, MissingResource
from workbench.models.from_python import TRUST, trust_specs
from workbench.models.loading import check_name, split_spec

TINY = "timm:vit_tiny_patch16_224?depth=2&img_size=64"


def tiny(**options):
    import timm

    torch.manual_seed(3)
    return timm.create_model("vit_tiny_patch16_224", **({"depth": 2, "img_size": 64} | options))


@pytest.fixture
def file(tmp_path):
    torch.save(tiny().state_dict(), tmp_path / "plain.pth")
    return tmp_path / "plain.pth"


# Specs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("timm:vit@w.pth", ("timm:vit", {}, "w.pth")),
        ("timm:vit?a=4&b=0.5@x@y", ("timm:vit", {"a": 4, "b": 0.5}, "x@y")),
        ("hf:a/b?c=true&d=[1,2]&e=gelu", ("hf:a/b", {"c": True, "d": [1, 2], "e": "gelu"}, None)),
        ("timm:hf-hub:owner/name@main", ("timm:hf-hub:owner/name@main", {}, None)),
        ("bundled:digits-vit@epoch-003", ("bundled:digits-vit", {}, "epoch-003")),
    ],
)
def test_a_spec_is_a_name_options_and_weights(spec, parts):
    assert split_spec(spec) == parts


def test_a_folder_with_such_a_name_is_one_name(tmp_path):
    (tmp_path / "a@b?c").mkdir()
    assert split_spec(f"hf:{tmp_path}/a@b?c")[1:] == ({}, None)


@pytest.mark.parametrize(
    "spec", ["timm:vit?a", "timm:vit?a=1&a=2", "timm:vit?=1", "timm:vit@", "timm:vit?a b=1"]
)
def test_options_that_cannot_be_read(spec):
    with pytest.raises(InputError, match=r"options are written|no checkpoint after"):
        load(spec)


def test_options_and_weights_of_a_timm_model(file):
    model = load(f"{TINY}@{file}")
    assert model.spec == TINY
    assert (model.num_layers, model.image.size, model.checkpoint) == (2, (64, 64), str(file))
    assert model.fingerprint == wrap(tiny()).fingerprint
    check_name(f"{TINY}@{file}")
    with pytest.raises(InputError, match="cannot be built with depht=2"):
        load("timm:vit_tiny_patch16_224?depht=2", pretrained=False)
    with pytest.raises(InputError, match="both name a checkpoint"):
        load(f"{TINY}@{file}", checkpoint="random")
    with pytest.raises(InputError, match=r"revision: only models of transformers.*is timm:"):
        load(TINY, pretrained=False, revision="main")
    with pytest.raises(InputError, match="bundled: takes no options"):
        load("bundled:digits-vit?depth=2")


def test_a_checkpoint_after_the_name_is_that_of_the_argument():
    first, second = load("bundled:digits-vit@epoch-000"), load("bundled:digits-vit", "epoch-000")
    assert first.identity == second.identity
    assert load("bundled:digits-vit@random-3").checkpoint == "random-3"
    frame = analyze("attention-map", "bundled:digits-vit@epoch-000", "bundled:digits", n=1)
    assert {*frame["checkpoint"]} == {"epoch-000"}


def test_values_of_a_configuration_and_a_file_for_a_folder(tmp_path):
    folder = bert_folder(tmp_path / "bert")
    assert load(f"hf:{folder}?num_hidden_layers=1@random").num_layers == 1
    with pytest.raises(InputError, match="no num_layerz in its configuration"):
        load(f"hf:{folder}?num_layerz=1@random")
    whole = load(f"hf:{folder}")
    other = {f"net.{name}": value + 1 for name, value in whole.module.state_dict().items()}
    torch.save({"state_dict": other}, tmp_path / "other.pth")
    with pytest.warns(UserWarning, match="the prefix 'net.' was removed"):
        model = load(f"hf:{folder}@{tmp_path / 'other.pth'}")
    name = "encoder.layer.0.attention.self.query.weight"
    torch.testing.assert_close(
        model.module.state_dict()[name], whole.module.state_dict()[name] + 1, rtol=0, atol=0
    )
    assert model.tokenizer("a")["input_ids"] == whole.tokenizer("a")["input_ids"]


# Files of weights -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["model.", "net.", "module.", "_orig_mod.", "module._orig_mod.", "a.b."])
def test_a_prefix_is_removed_and_named(tmp_path, prefix):
    state = {prefix + name: value for name, value in tiny().state_dict().items()}
    torch.save(state | {"head_of_another.weight": torch.ones(3)}, tmp_path / "w.pth")
    if prefix in ("model.", "net.", "a.b."):
        with pytest.warns(
            UserWarning, match=rf"prefix '{prefix}' was removed from \d+ names; 1 weights outside"
        ):
            model = load(f"{TINY}@{tmp_path / 'w.pth'}")
        assert model.fingerprint == wrap(tiny()).fingerprint
    else:
        with pytest.raises(InputError, match="head_of_another"):
            load(f"{TINY}@{tmp_path / 'w.pth'}")


def test_compiled_parts_and_averaged_weights(tmp_path):
    state = tiny().state_dict()
    torch.save(
        {n.replace("blocks.0.", "blocks.0._orig_mod."): v for n, v in state.items()}, tmp_path / "c.pth"
    )
    assert load(f"{TINY}@{tmp_path / 'c.pth'}").fingerprint == wrap(tiny()).fingerprint
    zeros = {name: torch.zeros_like(value) for name, value in state.items()}
    torch.save({"state_dict": zeros, "state_dict_ema": state}, tmp_path / "e.pth")
    with pytest.warns(UserWarning, match="averaged weights are read"):
        assert load(f"{TINY}@{tmp_path / 'e.pth'}").fingerprint == wrap(tiny()).fingerprint
    both = {f"model.{n}": v for n, v in zeros.items()} | {f"ema_model.{n}": v for n, v in state.items()}
    torch.save(both, tmp_path / "b.pth")
    with pytest.warns(UserWarning, match="prefix 'ema_model.'"):
        assert load(f"{TINY}@{tmp_path / 'b.pth'}").fingerprint == wrap(tiny()).fingerprint


def test_a_file_of_lightning(tmp_path, monkeypatch):
    module = ModuleType("lightning_fabric_data")
    monkeypatch.setitem(sys.modules, "lightning_fabric_data", module)
    module.AttributeDict = type("AttributeDict", (dict,), {"__module__": "lightning_fabric_data"})
    module.Callback = type("Callback", (), {"__module__": "lightning_fabric_data"})
    callback = module.Callback()
    callback.best = torch.ones(2)
    torch.save(
        {
            "epoch": 3,
            "pytorch-lightning_version": "2.5.0",
            "state_dict": {f"net.{name}": value for name, value in tiny().state_dict().items()},
            "hyper_parameters": module.AttributeDict(lr=0.1),
            "callbacks": {"ModelCheckpoint": callback},
        },
        tmp_path / "last.ckpt",
    )
    with pytest.warns(UserWarning, match="prefix 'net.'"):
        model = load(f"{TINY}@{tmp_path / 'last.ckpt'}")
    assert model.fingerprint == wrap(tiny()).fingerprint


def test_objects_beside_weights_run_nothing(tmp_path):
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(ran),)

    torch.save({"state_dict": tiny().state_dict(), "hyper_parameters": Evil()}, tmp_path / "evil.ckpt")
    with pytest.raises(InputError, match="could run code"):
        load(f"{TINY}@{tmp_path / 'evil.ckpt'}")
    assert not ran.exists()
    torch.save({"state_dict": nn.Linear(2, 3)}, tmp_path / "module.ckpt")
    with pytest.raises(InputError, match=r"refers to torch\.nn"):
        load(f"{TINY}@{tmp_path / 'module.ckpt'}")


def test_weights_of_larger_images_name_the_size(tmp_path):
    torch.save(tiny(img_size=96).state_dict(), tmp_path / "w.pth")
    path = tmp_path / "w.pth"
    with pytest.raises(
        InputError, match=r"images of 96 × 96 \(197 positions .* 37 in the file\).*\?img_size=96@"
    ):
        load(f"timm:vit_tiny_patch16_224?depth=2@{path}")
    assert load(f"timm:vit_tiny_patch16_224?depth=2&img_size=96@{path}").image.size == (96, 96)
    with pytest.warns(UserWarning, match=r"w\.pth: positions are resampled from images of 96 × 96"):
        assert load(f"timm:vit_tiny_patch16_224?depth=2&img_size=64@{path}").image.size == (64, 64)
    torch.save(tiny(img_size=64, reg_tokens=4).state_dict(), tmp_path / "r.pth")
    with pytest.raises(InputError, match="give the arguments that it was trained with"):
        load(f"timm:vit_tiny_patch16_224?depth=2@{tmp_path / 'r.pth'}")


def test_a_folder_of_timm_by_its_path(tmp_path):
    from timm.models import save_for_hf

    module = tiny(pretrained_cfg_overlay={"input_size": (3, 64, 64)})
    module.pretrained_cfg["architecture"] = "vit_tiny_patch16_224"
    save_for_hf(module, tmp_path / "mine", model_args={"depth": 2, "img_size": 64})
    for spec in (f"{tmp_path}/mine", f"timm:{tmp_path}/mine", f"hf:{tmp_path}/mine"):
        assert load(spec).fingerprint == wrap(module).fingerprint


def test_pointers_and_adapters_are_named(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"
    (tmp_path / "w.safetensors").write_bytes(pointer)
    with pytest.raises(InputError, match=r"pointer of Git LFS.*git lfs pull"):
        load(f"{TINY}@{tmp_path / 'w.safetensors'}")
    folder = bert_folder(tmp_path / "bert")
    (folder / "model.safetensors").write_bytes(pointer)
    with pytest.raises(InputError, match="pointer of Git LFS"):
        load(f"hf:{folder}")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "gpt2"}')
    with pytest.raises(InputError, match=r"adapter of PEFT for gpt2.*merge_and_unload"):
        load(f"hf:{tmp_path / 'adapter'}")


def test_a_saved_classifier_predicts(tmp_path):
    from transformers import ViTForImageClassification, ViTModel

    folder = vit_folder(tmp_path / "vit")
    config = ViTModel.from_pretrained(folder).config
    config.num_labels = 7
    ViTForImageClassification(config).save_pretrained(folder)
    model = load(f"hf:{folder}")
    assert type(model.module) is ViTForImageClassification
    with torch.no_grad():
        assert model.module(**inputs("bundled:photos", model, n=2).batch).logits.shape == (2, 7)
    ViTModel(config).save_pretrained(folder)
    (folder / "config.json").write_text(
        (folder / "config.json").read_text().replace("ViTModel", "ViTForImageClassification")
    )
    with pytest.warns(UserWarning, match="lack the classifier"):
        load(f"hf:{folder}")


# Modules of one's own ---------------------------------------------------------------------------------------


def test_a_wrapped_module_takes_inputs_and_analyses():
    module = tiny()
    module.train()
    mine = wrap(module, like=TINY, name="mine")
    assert mine.module is module
    assert module.training
    assert next(module.parameters()).requires_grad
    chosen = inputs("bundled:photos", mine, n=2)
    torch.testing.assert_close(
        chosen.batch, inputs("bundled:photos", load(TINY, pretrained=False), n=2).batch
    )
    module.eval()
    frame = analyze("attention-map", mine, "bundled:photos", n=2)
    assert {*frame["model"]} == {"mine"}
    assert frame.attrs["provenance"]["model"]["sha256"] == mine.fingerprint


def test_two_of_one_name_are_numbered():
    first, second = (
        wrap(tiny().eval(), like=TINY, name="mine"),
        wrap(tiny(depth=1).eval(), like=TINY, name="mine"),
    )
    frame = analyze_many("attention-map", [(first, "bundled:photos"), (second, "bundled:photos")], n=1)
    assert [*frame["model"].unique()] == ["mine 1", "mine 2"]


def test_a_transform_says_what_images_are():
    from torchvision import transforms

    steps = [transforms.Resize((64, 64)), transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)]
    mine = wrap(tiny(), transform=transforms.Compose(steps))
    assert (mine.image.size, mine.image.channels, mine.image.mean) == ((64, 64), 3, (0.5, 0.5, 0.5))
    chosen = inputs("bundled:photos", mine, n=1)
    assert chosen.batch.shape == (1, 3, 64, 64)
    assert chosen.tokens.grid == (4, 4)
    steps[-1] = transforms.Normalize(0.25, 0.5)  # one number for all channels
    image = wrap(tiny(), transform=transforms.Compose(steps)).image
    assert (image.mean, image.std) == ((0.25, 0.25, 0.25), (0.5, 0.5, 0.5))
    with pytest.raises(InputError, match=r"transform makes a float tensor .* got Image"):
        wrap(tiny(), transform=lambda image: image)
    with pytest.raises(InputError, match="transform fails on a PIL image: KeyError"):
        wrap(tiny(), transform=lambda image: {}["no"])


def test_a_tokenizer_says_what_texts_are(tmp_path):
    bert = load(f"hf:{bert_folder(tmp_path / 'bert')}")
    theirs = copy.deepcopy(bert.tokenizer)
    theirs.padding_side = theirs.truncation_side = "left"
    mine = wrap(bert.module, tokenizer=theirs)
    assert mine.tokenizer.padding_side == "right"
    assert (theirs.padding_side, theirs.truncation_side) == ("left", "left")
    assert (mine.modality, mine.max_length, mine.spec) == ("text", 40, "BertModel")
    assert inputs(["a clock strikes"], mine).tokens.labels == inputs(["a clock strikes"], bert).tokens.labels
    with pytest.raises(InputError, match="one of transformers; got a str"):
        wrap(bert.module, tokenizer="bert")
    with pytest.raises(InputError, match="one of transformers; got a function"):
        wrap(bert.module, tokenizer=lambda text: [1, 2])
    with pytest.raises(InputError, match="takes a torch module"):
        wrap("bert")
    with pytest.raises(InputError, match="neither images nor texts"):
        inputs(["a"], wrap(nn.Linear(2, 3)))


@pytest.fixture
def factory(tmp_path, monkeypatch):
    (tmp_path / "mymodels.py").write_text(
        "import timm, workbench\n"
        "open('ran', 'a').write('x')\n"
        "def vit(depth=2): return timm.create_model('vit_tiny_patch16_224', depth=depth, img_size=64)\n"
        f"def wrapped(): return workbench.wrap(vit(), like={TINY!r})\n"
        "def number(): return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TRUST, raising=False)
    yield tmp_path
    sys.modules.pop("mymodels", None)


def test_a_function_of_ones_own_runs_only_where_it_is_trusted(factory, file, monkeypatch):
    for call in (load, lambda spec: analyze("attention-map", spec, "bundled:photos", n=1), check_name):
        with pytest.raises(InputError, match=r"py:mymodels:vit runs code.*trust=True.*--trust"):
            call("py:mymodels:vit")
    assert not (factory / "ran").exists()
    model = load(f"py:mymodels:vit?depth=2@{file}", trust=True)
    assert model.fingerprint == wrap(tiny()).fingerprint
    assert (model.spec, model.checkpoint, model.image.size) == (
        "py:mymodels:vit?depth=2",
        str(file),
        (64, 64),
    )
    assert load("py:mymodels:wrapped", trust=True).modality == "image"
    with pytest.raises(InputError, match="gives a int"):
        load("py:mymodels:number", trust=True)
    with pytest.raises(InputError, match="cannot be loaded: AttributeError"):
        load("py:mymodels:none", trust=True)
    with pytest.raises(InputError, match="names no function"):
        load("py:mymodels", trust=True)
    monkeypatch.setenv(TRUST, "")
    trust_specs(["py:mymodels:vit?depth=1@x", "bundled:digits-vit"])
    assert load("py:mymodels:vit?depth=1").num_layers == 1
    with pytest.raises(InputError, match="runs code"):
        load("py:mymodels:number")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises((InputError, MissingResource), match="no checkpoint at"):
        load(f"{TINY}@{tmp_path / 'no.pth'}")
