"""Results that were kept are found again, and only where nothing that they depend on has changed."""

import os
import time
from functools import partial

import pandas as pd
import pytest
import timm
import torch
from torch import nn

import workbench
from tests.captures.families import FAMILIES
from tests.kept import key_of, number_frame
from tests.runs.watch.loops import images, own_model, sequences, vit
from tests.together import run_together
from workbench.analyses import registry
from workbench.apps import cli
from workbench.captures.family import Block, Family, class_path, register_family
from workbench.core.errors import InputError
from workbench.runs import analyze as pipeline
from workbench.runs import cache as caching
from workbench.runs import unfinished
from workbench.runs.cache import Store, Unhashable, content_sha256, module_content, size_limit
from workbench.runs.loop import model_source
from workbench.runs.settings import RunSettings

NAME = "token-similarity"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    for name in ("WORKBENCH_CACHE_RESULTS", "WORKBENCH_CACHE_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "results"


@pytest.fixture
def runs(monkeypatch):
    """How often an analysis was really run."""
    counted = []
    real = pipeline.accumulate
    monkeypatch.setattr(pipeline, "accumulate", lambda *a: (counted.append(1), real(*a))[1])
    return counted


@pytest.mark.usefixtures("families")
def test_a_model_of_a_family_declared_elsewhere_is_not_kept():
    model = vit()
    assert module_content(model)
    block = type(model.blocks[0])
    register_family(Family(blocks={class_path(block): Block()}))
    with pytest.raises(Unhashable, match=r"blocks\.0 \(Block\) is of a family that this session declares"):
        module_content(model)


def same(a, b):
    pd.testing.assert_frame_equal(a, b)
    assert content_sha256(a.attrs) == content_sha256(b.attrs)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gram-spectrum", {}),
        ("projection-error", {"null_samples": 3}),
        (NAME, {"null": "permutation", "null_samples": 3, "layers": "0,-1"}),
        ("subspaces", {"inputs": None, "null_samples": 3}),
        ("attention-map", {"seed": 4, "batch_size": 2}),
    ],
)
def test_what_is_found_is_what_was_computed(name, arguments, runs, folder):
    arguments = {"model": "bundled:digits-vit", "inputs": "bundled:digits", "cache": True} | arguments
    if arguments["inputs"] is not None:
        arguments["n"] = 3
    first = workbench.analyze(name, **arguments)
    shares = []
    again = workbench.analyze(name, **arguments, progress=shares.append)
    assert runs == [1]
    assert shares == [1.0]
    same(first, again)
    arguments["cache"] = False
    same(first, workbench.analyze(name, **arguments))
    assert len(list(folder.glob("*/*.parquet"))) == 1


def loaded():
    return workbench.load("bundled:digits-vit")


CHANGES = {
    "a weight": lambda model, call: model.module.blocks[2].attn.qkv.weight.data[3, 1].add_(1e-3),
    "a setting": lambda model, call: setattr(model.module.blocks[0].attn, "scale", 0.3),
    "a mode": lambda model, call: model.module.blocks[1].train(),
    "an epsilon": lambda model, call: setattr(model.module.norm, "eps", 1e-2),
    "the attention": lambda model, call: workbench.replace_attention(model, "softmax-sym", layers=[0]),
    "a pixel": lambda model, call: call["inputs"].batch[0, 0, 3, 4].add_(1e-3),
    "the seed": lambda model, call: call.update(seed=1),
    "an option": lambda model, call: call.update(special_tokens="remove"),
    "the layers": lambda model, call: call.update(layers=[0]),
    "another analysis": lambda model, call: call.update(analysis="gram-spectrum"),
    "precision": lambda model, call: model.module.double() and call["inputs"].batch.double(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_anything_is_another_result(what, runs):
    model = loaded()
    call = {"analysis": NAME, "inputs": workbench.inputs("bundled:digits", model, n=2), "cache": True}

    def analyze():
        arguments = {key: value for key, value in call.items() if key != "analysis"}
        return workbench.analyze(call["analysis"], model=model, **arguments)

    analyze()
    analyze()
    assert runs == [1]
    CHANGES[what](model, call)
    if what == "precision":
        call["inputs"].batch = call["inputs"].batch.double()
    analyze()
    assert runs == [1, 1]


def test_what_torch_and_the_source_are_is_part_of_it(runs, monkeypatch):
    model, arguments = loaded(), {"cache": True, "n": 2, "inputs": "bundled:digits"}
    workbench.analyze(NAME, model=model, **arguments)
    with torch.autocast("cpu", torch.bfloat16):
        workbench.analyze(NAME, model=model, **arguments)
    monkeypatch.setattr(caching, "source_sha256", lambda: "edited")
    workbench.analyze(NAME, model=model, **arguments)
    assert runs == [1, 1, 1]


MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn


@pytest.mark.parametrize(
    ("change", "value", "usual"),
    [
        (torch.set_float32_matmul_precision, "medium", "highest"),
        (torch.set_default_dtype, torch.float64, torch.float32),
        (torch.use_deterministic_algorithms, True, False),
        (partial(setattr, CUDNN, "allow_tf32"), not CUDNN.allow_tf32, CUDNN.allow_tf32),
        (partial(setattr, MATMUL, "allow_fp16_reduced_precision_reduction"), False, True),
        (partial(setattr, MATMUL, "allow_bf16_reduced_precision_reduction"), False, True),
    ],
)
def test_the_precision_is_part_of_the_key(change, value, usual):
    before = caching._settings()
    change(value)
    try:
        assert caching._settings() != before
    finally:
        change(usual)
    assert caching._settings() == before


def hooked():
    model = vit().eval()
    model.blocks[0].register_forward_hook(lambda module, args, output: output * 2)
    return model


def overridden():
    model = vit().eval()
    plain = model.norm.forward
    model.norm.forward = lambda x: 2 * plain(x)
    return model


class Table:
    """An object whose ``to_dict`` leaves out what it computes, as a table of options may."""

    def to_dict(self):
        return {}


def tabled():
    model = vit().eval()
    model.norm.table = Table()
    return model


@pytest.mark.parametrize(
    ("make", "batch", "reason"),
    [
        (lambda: own_model().eval(), sequences, "the model (Sequences) is your own code"),
        (hooked, images, "blocks.0 (Block) has a forward hook"),
        (overridden, images, "norm (LayerNorm)['forward'] is a function"),
        (tabled, images, "norm (LayerNorm)['table'] is a Table"),
    ],
)
def test_what_cannot_be_hashed_is_not_kept_and_said(make, batch, reason, runs, folder):
    model = make()
    for _ in range(2):
        frame = workbench.analyze("gram-spectrum", model=model, inputs=batch(), cache=True)
    assert runs == [1, 1]
    (note,) = [note for note in frame.attrs["notes"] if note.startswith("not cached")]
    assert reason in note
    assert not folder.exists()


def test_a_hook_of_all_modules_is_seen():
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    try:
        with pytest.raises(Unhashable, match="every module has a forward hook"):
            module_content(vit())
    finally:
        handle.remove()
    assert module_content(vit())


def test_an_analysis_of_somebody_else_and_a_folder_of_masks_are_not_kept(runs, monkeypatch, tmp_path):
    arguments = {"model": vit().eval(), "inputs": images(), "cache": True}
    monkeypatch.setitem(registry.ANALYSES, "mine", registry.ANALYSES[NAME])
    frame = workbench.analyze("mine", **arguments)
    said = "not cached: the analysis or its null is of another package, whose code may change"
    assert said in frame.attrs["notes"]
    source = model_source(RunSettings(model=arguments["model"], inputs=images()), ("v",))
    with pytest.raises(Unhashable, match="masks is a file or folder"):
        caching.result_key(source, True, {"options": {"masks": str(tmp_path)}})


@pytest.mark.parametrize("name", ["vit", "swin", "cait", "minilm", "gpt2", "llama", "hf-vit"])
def test_models_of_the_libraries_can_be_hashed(name):
    first, second = (content_sha256(module_content(FAMILIES[name].build())) for _ in range(2))
    assert first == second


def test_a_module_of_timm_is_kept_by_its_content(runs):
    for _ in range(2):
        workbench.analyze(NAME, model=vit().eval(), inputs=images(), cache=True)
    assert runs == [1]
    other = timm.models.vision_transformer.VisionTransformer(
        img_size=12, patch_size=4, embed_dim=8, depth=2, num_heads=4, num_classes=7
    )
    other.load_state_dict(vit().state_dict())  # the same weights in other heads
    workbench.analyze(NAME, model=other.eval(), inputs=images(), cache=True)
    assert runs == [1, 1]


def test_a_file_of_operands_is_kept_by_its_content(tmp_path, runs):
    for number in (0, 0, 1):
        captured = workbench.capture(vit().eval(), images() + number, sites=["q", "k", "v"])
        captured.save(tmp_path / "qkv.safetensors")
        workbench.analyze("gram-spectrum", qkv=tmp_path / "qkv.safetensors", cache=True)
    assert len(runs) == 2
    frame = workbench.analyze("gram-spectrum", qkv=captured, cache=True)
    assert any(note.startswith("not cached") for note in frame.attrs["notes"])


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied", "of another key"])
def test_a_damaged_file_is_computed_again(damage, folder):
    store = Store()
    store.write(key_of(1), number_frame(1))
    path = store.path(key_of(1))
    content = path.read_bytes()
    if damage == "of another key":
        store.write(key_of(2), number_frame(2))
        os.replace(store.path(key_of(2)), path)
    else:
        middle = 20  # inside the first page of values
        changed = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        path.write_bytes({"cut": content[: len(content) // 2], "changed": changed, "emptied": b""}[damage])
    assert store.read(key_of(1)) is None
    assert not path.exists()
    store.write(key_of(1), number_frame(1))
    assert set(store.read(key_of(1))["value"]) == {1.0}


class Stopped(Exception):
    """Ctrl-C, as a test has it."""


def stopping_after(layers):
    """Progress that stops a run after so many layers."""
    told = []

    def tell(share):
        told.append(share)
        if len(told) == layers:
            raise Stopped

    return tell


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gram-spectrum", {"method": "tiled", "max_rank": 4}),
        ("value-similarity", {"null_samples": 3}),
        ("attention-map", {"per_input": False}),
        (NAME, {"null": "permutation", "null_samples": 3}),
        ("class-attention", {}),
    ],
)
def test_an_interrupted_run_goes_on_after_the_layers_it_has_measured(name, options, monkeypatch, folder):
    arguments = {"model": "bundled:digits-vit", "inputs": "bundled:digits", "n": 3, "batch_size": 2} | options
    whole = workbench.analyze(name, **arguments)
    monkeypatch.setattr(unfinished, "WORTH", 0.0)
    real, measured = registry.Analysis.measured, []
    monkeypatch.setattr(
        registry.Analysis, "measured",
        lambda self, layer, options: (measured.append((layer.index, len(layer.ids))), real(self, layer, options))[1],
    )  # fmt: skip
    with pytest.raises(Stopped):
        workbench.analyze(name, **arguments, cache=True, progress=stopping_after(5))
    assert measured == [(0, 2), (1, 2), (2, 2), (3, 2), (0, 1)]
    assert len(layers_in(folder)) == 5
    damaged = min(layers_in(folder))
    damaged.write_bytes(damaged.read_bytes()[:-3])  # one of the five is measured again
    measured.clear()
    found = workbench.analyze(name, **arguments, cache=True)
    assert len(measured) == 4
    assert {*measured} >= {(1, 1), (2, 1), (3, 1)}
    same(found, whole)
    assert not layers_in(folder)
    assert workbench.analyze(name, **arguments, cache=True).equals(whole)


def layers_in(folder):
    return [*folder.glob("*/*.layer")]


def test_layers_that_take_no_time_are_not_kept_and_the_others_leave_as_results_do(monkeypatch, folder):
    arguments = {"model": "bundled:digits-vit", "inputs": "bundled:digits", "n": 1, "cache": True}
    with pytest.raises(Stopped):
        workbench.analyze(NAME, **arguments, progress=stopping_after(2))
    assert not layers_in(folder)
    monkeypatch.setattr(unfinished, "WORTH", 0.0)
    with pytest.raises(Stopped):
        workbench.analyze(NAME, **arguments, progress=stopping_after(2))
    first, second = layers_in(folder)
    os.utime(first, (0, 0))
    store = Store(limit=second.stat().st_size)
    assert store.info() | {"folder": ""} == {
        "folder": "",
        "results": 0,
        "bytes": 2 * store.limit,
        "limit": store.limit,
    }
    store.shrink()
    assert layers_in(folder) == [second]
    assert store.clear() == 0
    assert not layers_in(folder)


def test_what_was_not_used_for_longest_leaves_first():
    store = Store(limit=2**60)
    for number in range(4):
        store.write(key_of(number), number_frame(number))
        os.utime(store.path(key_of(number)), (number, number))
    size = store.path(key_of(0)).stat().st_size
    assert store.read(key_of(0)) is not None  # and so it was used
    store.limit = 3 * size + size // 2
    store.write(key_of(4), number_frame(4))
    assert [store.path(key_of(number)).exists() for number in range(5)] == [True, False, False, True, True]
    assert store.info()["bytes"] <= store.limit
    assert store.clear() == 3
    assert store.info()["results"] == 0


def test_what_a_killed_process_left_goes():
    store = Store()
    store.write(key_of(1), number_frame(1))
    old, new = (store.path(key_of(1)).with_name(f".{name}.parquet.x") for name in "ab")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * caching.STALE,) * 2)
    store.shrink()
    assert (old.exists(), new.exists()) == (False, True)


def test_a_place_that_cannot_be_written_costs_no_result(folder, runs):
    folder.write_text("a file in its place")
    frame = workbench.analyze(NAME, model=vit().eval(), inputs=images(), cache=True)
    assert any(note.startswith("not cached: ") for note in frame.attrs["notes"])


HAMMER = """
import random, sys
from tests.kept import key_of, number_frame
from workbench.runs.cache import Store
store, rng = Store(limit=int(sys.argv[2])), random.Random(int(sys.argv[1]))
found = 0
for _ in range(150):
    number = rng.randrange(8)
    frame = store.read(key_of(number))
    if frame is None:
        assert store.write(key_of(number), number_frame(number)) is None
    else:
        found += 1
        assert set(frame["value"]) == {float(number)}, number
assert found
"""


def test_two_processes_at_once(folder):
    store = Store()
    store.write(key_of(0), number_frame(0))
    limit = 5 * store.path(key_of(0)).stat().st_size  # of eight: both let go what the other reads
    run_together(HAMMER, [(seed, limit) for seed in range(2)])
    assert store.info()["bytes"] <= limit
    assert all(store.read(path.stem) is not None for path in folder.glob("*/*.parquet"))
    assert not list(folder.glob("*/.*"))


def test_settings_of_the_environment(monkeypatch, runs):
    assert not pipeline.is_kept(None)
    for said, wanted in (("1", True), ("yes", True), ("0", False), ("", False)):
        monkeypatch.setenv("WORKBENCH_CACHE_RESULTS", said)
        assert pipeline.is_kept(None) == wanted
        assert pipeline.is_kept(True)
        assert not pipeline.is_kept(False)
    monkeypatch.setenv("WORKBENCH_CACHE_RESULTS", "maybe")
    with pytest.raises(InputError, match="1 or 0"):
        pipeline.is_kept(None)
    for said, size in (
        ("", 2 * 2**30),
        ("123", 123),
        ("500 MB", 500_000_000),
        ("1.5GiB", 3 * 2**29),
        ("0", 0),
    ):
        monkeypatch.setenv("WORKBENCH_CACHE_SIZE", said)
        assert size_limit() == size
    monkeypatch.setenv("WORKBENCH_CACHE_SIZE", "much")
    with pytest.raises(InputError, match="500 MB"):
        size_limit()


def test_the_command(capsys, folder):
    Store().write(key_of(1), number_frame(1))
    for words, said in (
        (["info"], "1"),
        (["clear"], "1 results removed"),
        (["info", "--json"], '"results": 0'),
    ):
        with pytest.raises(SystemExit) as left:
            cli.main(["cache", *words])
        assert left.value.code == 0
        assert said in capsys.readouterr().out


def test_contents():
    values = [
        None, True, 1, 1.0, "1", b"1", [1], [[1]], {"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"b": 2, "a": 1},
        torch.tensor([1, 2]), torch.tensor([[1, 2]]), torch.tensor([1.0, 2.0]), torch.tensor([1, 2]).numpy(), {1, 2},
        torch.tensor([[1, 2]]).numpy(), torch.tensor([1, 2]).numpy().view("uint64"),
    ]  # fmt: skip
    assert len({content_sha256(value) for value in values}) == len(values)
    assert content_sha256({2, 1}) == content_sha256({1, 2})
    strided = torch.arange(6).view(2, 3).T
    assert content_sha256(strided) == content_sha256(strided.contiguous())
    with pytest.raises(Unhashable, match=r"it\['a'\]\[0\] is a object"):
        content_sha256({"a": [object()]})
