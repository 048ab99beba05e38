import argparse
import json
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import workbench
from workbench.attention import VARIANTS
from workbench.core.errors import InputError, MissingResource
from workbench.core.files import sha256_file
from workbench.models.architectures import build
from workbench.models.checkpoints import (
    _check_size,
    load_weights,
    read_checkpoint,
    restore,
    write_checkpoint,
)
from workbench.models.source import read_state, read_torch_file

ARCHITECTURE = {"name": "vit", "patch_size": 8, "embed_dim": 6, "depth": 1, "num_heads": 2}
META = {"architecture": ARCHITECTURE, "task": "digits", "epoch": 3, "metrics": {"test_accuracy": 0.1 + 0.2}}


@pytest.fixture
def model():
    return build(ARCHITECTURE)


def test_weights_and_metadata_come_back_exactly(model, tmp_path):
    path = tmp_path / "epoch-003.safetensors"
    digest = write_checkpoint(path, model, META)
    state, meta = read_checkpoint(path)
    assert meta == META
    assert digest == sha256_file(path)
    assert list(tmp_path.iterdir()) == [path]
    torch.testing.assert_close(state, dict(model.state_dict()), rtol=0, atol=0)


def test_same_weights_give_the_same_bytes(model, tmp_path):
    reordered = dict(reversed(META.items()))
    assert write_checkpoint(tmp_path / "a", model, META) == write_checkpoint(tmp_path / "b", model, reordered)


def test_restored_model_computes_what_the_saved_one_did(model, tmp_path):
    write_checkpoint(tmp_path / "model.safetensors", model, META)
    restored, meta = restore(tmp_path / "model.safetensors")
    images = torch.randn(3, 1, 16, 16)
    assert meta == META
    assert not restored.training
    torch.testing.assert_close(restored(images), model.eval()(images), rtol=0, atol=0)


def test_images_are_prepared_as_the_checkpoint_says_whatever_is_asked(tmp_path):
    """``preprocessing`` of a run does not change them, since the weights know no other."""
    module = build({"name": "vit", "depth": 1, "embed_dim": 12, "num_heads": 3})
    about = {"resize": 16, "interpolation": "bilinear", "mean": [0.25], "std": [0.5]}
    meta = {
        "architecture": {"name": "vit", "depth": 1, "embed_dim": 12, "num_heads": 3},
        "preprocessing": about,
    }
    write_checkpoint(tmp_path / "x.safetensors", module, meta)
    model = workbench.load(f"file:{tmp_path / 'x.safetensors'}")
    assert (model.image.size, model.image.mean, model.image.std) == ((16, 16), (0.25,), (0.5,))
    batches = [
        workbench.inputs("bundled:digits", model, n=2, preprocessing=kind).batch
        for kind in ("model", "saritas2025")
    ]
    torch.testing.assert_close(*batches, rtol=0, atol=0)


def test_weights_of_another_width_are_refused_with_both_shapes(model, tmp_path):
    write_checkpoint(tmp_path / "x.safetensors", model, {"architecture": {**ARCHITECTURE, "embed_dim": 10}})
    with pytest.raises(InputError, match=r"bias is \(6,\) in the file and \(10,\) in the model;.* \d+ more"):
        restore(tmp_path / "x.safetensors")


def test_missing_and_surplus_weights_are_named(model, tmp_path):
    state = model.state_dict()
    state["heads.bias"] = state.pop("head.bias")
    write_checkpoint(tmp_path / "x.safetensors", state, META)
    with pytest.raises(InputError, match=r"head.bias is missing; heads.bias is not part of the model"):
        restore(tmp_path / "x.safetensors")


def test_weights_without_our_metadata_are_refused(model, tmp_path):
    save_file(model.state_dict(), tmp_path / "plain.safetensors")
    with pytest.raises(InputError, match="not how to rebuild"):
        read_checkpoint(tmp_path / "plain.safetensors")


def test_truncated_missing_and_other_files(model, tmp_path):
    whole = tmp_path / "whole.safetensors"
    write_checkpoint(whole, model, META)
    (tmp_path / "part.safetensors").write_bytes(whole.read_bytes()[:-100])
    (tmp_path / "text.safetensors").write_text("not a checkpoint")
    for name in ("part", "text"):
        with pytest.raises(InputError, match=f"{name}.safetensors is not a readable safetensors file"):
            read_checkpoint(tmp_path / f"{name}.safetensors")
    with pytest.raises(InputError, match="no checkpoint at"):
        read_checkpoint(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match=r"is a folder.*whole.safetensors"):
        read_checkpoint(tmp_path)


def test_a_checkpoint_that_changed_since_its_run_wrote_it_is_refused(model, tmp_path):
    path = tmp_path / "epoch-001.safetensors"
    digest = write_checkpoint(path, model, META)
    (tmp_path / "model.json").write_text(json.dumps({"checkpoints": [{"file": path.name, "sha256": digest}]}))
    read_checkpoint(path)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1  # one bit of one weight: the file can still be read
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"epoch-001.safetensors is not the file that its run wrote"):
        read_checkpoint(path)
    for table in ("[", '[{"checkpoints": 3}]', '{"checkpoints": [3]}'):
        (tmp_path / "model.json").write_text(table)
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mlp_ratio": 10**30}, "cannot be built"), ({"attention_options": {"name": []}}, "cannot be built"),
    ],
)  # fmt: skip
def test_an_architecture_that_cannot_be_built_is_an_error_that_names_the_file(model, tmp_path, changes, said):
    write_checkpoint(tmp_path / "x.safetensors", model, META | {"architecture": ARCHITECTURE | changes})
    with pytest.raises(InputError, match=said):
        restore(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architecture": []}, "architecture: Input should be"),
        ({"architecture": {"name": "vit", "depth": "four"}}, "depth of architecture 'vit' must be a whole number"),
        ({"architecture": {"name": "vit", "patch_size": 0}}, "patch_size of architecture 'vit' must be"),
        ({"architecture": {"name": "vit", "num_heads": 3.0}}, "num_heads of architecture 'vit' must be"),
        ({"architecture": {"name": "vit", "embed_dim": 900_000, "num_heads": 1}}, r"does not fit.*that has \d+,"),
        ({"format": "3"}, "format: Input should be"),
        ({"format": 4}, "has format 4; this workbench reads format 3: update"),
        ({"format": 2}, "has format 2; this workbench reads format 3: write the file again"),
        ({"preprocessing": {"mean": ["x"], "std": [1], "resize": 8}}, "mean.0: Input should be"),
        ({"preprocessing": {"characters": 3}}, "characters: Input should be"),
        ({"preprocessing": {"characters": "ab"}}, "names 2? ?characters"),
        ({"attention": []}, "attention: Input should be"),
    ],
)  # fmt: skip
def test_metadata_of_any_shape_are_an_error_that_names_the_place(model, tmp_path, changes, said):
    path = tmp_path / "model.safetensors"
    about = {
        "format": 3,
        "architecture": ARCHITECTURE,
        "preprocessing": {"mean": [0.0], "std": [1.0], "resize": 8},
    }
    write_checkpoint(path, model, about | changes)
    with pytest.raises(InputError, match=said):
        workbench.load(f"file:{path}")


def test_an_unwritable_place_is_named(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingResource, match="cannot write"):
        write_checkpoint(tmp_path / "file" / "x.safetensors", model, META)


class Surprise:
    """Pickles as a call that would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_torch_file_that_would_run_code_is_refused_and_runs_nothing(zipped, tmp_path):
    trace = tmp_path / "trace"
    torch.save({"model": Surprise(trace)}, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match=r"it refers to \w*\.?open.*state_dict") as caught:
        read_torch_file(tmp_path / "x.pt")
    assert not trace.exists()
    assert "weights_only=False" not in str(caught.value)


def test_weights_with_the_arguments_of_their_script_are_read(tmp_path):
    content = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "args": argparse.Namespace(lr=0.1)}
    torch.save(content, tmp_path / "x.pth")
    read = read_torch_file(tmp_path / "x.pth")
    torch.testing.assert_close(read["model"], content["model"])
    assert read["args"] == content["args"]
    # Only while it reads: nothing is left allowed for the rest of the process.
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


@pytest.mark.parametrize("value", [np.float64(0.25), np.float32(0.25), np.arange(3), [np.bool_(True)]])
def test_weights_beside_numbers_of_numpy_are_read(value, tmp_path):
    torch.save({"model": {"w": torch.arange(6.0).reshape(2, 3)}, "best": value}, tmp_path / "x.pth")
    torch.testing.assert_close(read_state(tmp_path / "x.pth"), {"w": torch.arange(6.0).reshape(2, 3)})


def test_damaged_torch_files(tmp_path):
    torch.save({"w": torch.ones(2, 3)}, tmp_path / "whole.pt")
    (tmp_path / "part.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:200])
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps({"a": 1}, protocol=2)[:-1])
    for name in ("part", "empty", "text", "pickle"):
        with pytest.raises(InputError, match=f"{name}.pt"):
            read_torch_file(tmp_path / f"{name}.pt")


class Tied(torch.nn.Module):
    """Two layers with one weight, and a third with its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Linear(3, 2) for _ in range(3))
        self.second.weight = self.first.weight


def test_a_shared_parameter_is_stored_once_and_given_back_to_all(tmp_path):
    model, fresh = Tied(), Tied()
    write_checkpoint(tmp_path / "x.safetensors", model, META)
    state, _ = read_checkpoint(tmp_path / "x.safetensors")
    assert set(model.state_dict()) - set(state) == {"second.weight"}
    load_weights(fresh, state)
    assert fresh.second.weight is fresh.first.weight
    torch.testing.assert_close(dict(fresh.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    load_weights(fresh, model.state_dict())  # under both names is as good


def test_a_missing_shared_parameter_is_named(tmp_path):
    state = {name: value for name, value in Tied().state_dict().items() if not name.endswith("d.weight")}
    with pytest.raises(InputError, match=r"third\.weight is missing"):
        load_weights(Tied(), state)
    del state["first.weight"]
    with pytest.raises(InputError, match=r"first\.weight is missing; second\.weight is missing"):
        load_weights(Tied(), state)


def stored(folder, built, said, **meta):
    """A checkpoint whose weights are of one architecture, and whose metadata name another."""
    path = folder / "x.safetensors"
    write_checkpoint(
        path, build({**ARCHITECTURE, **built}), {"architecture": {**ARCHITECTURE, **said}, **meta}
    )
    return path


# Variants that share their weights' names and shapes: no reader of the weights alone can tell them apart.
ALIKE = [
    {
        "softmax", "rpc-asym", "alibi", "twicing", "nystrom", "scaled-exact", "softmax-off-by-one", "softpick",
        "sigmoid",
    },
    {"softmax-sym", "rpc-sym", "rpc-sym-asym"},
    {"primal", "primal-independent"},
]  # fmt: skip
OTHERS = [
    (built, said)
    for built, variant in VARIANTS.items()
    for said in ("softmax", "rpc-sym", "primal", "tssa", "bilateral")
    if built != said and variant.causality != "always" and not any({built, said} <= alike for alike in ALIKE)
]


def options(name):
    return {"attention": name, "attention_options": {"low_rank": 2} if name.startswith("primal") else {}}


@pytest.mark.parametrize(("built", "said"), OTHERS)
def test_weights_of_another_variant_are_refused_with_both_names(built, said, tmp_path):
    path = stored(tmp_path, options(built), options(said))
    with pytest.raises(InputError) as caught:
        restore(path)
    held, _, wanted = str(caught.value).partition(", the model has ")
    assert "the weights of blocks.0.attn are those of '" in held
    assert f"'{built}'" in held
    assert wanted.startswith(f"'{said}'; take the checkpoint that was trained so (")


def test_variants_in_a_part_of_the_layers_are_reported_by_the_layer(tmp_path):
    first = {"depth": 3, "attention_layers": [0], **options("tssa")}
    everywhere = {"depth": 3, **options("tssa")}
    with pytest.raises(
        InputError, match=r"weights of blocks\.1\.attn are those of 'tssa', the model has 'softmax'"
    ):
        restore(stored(tmp_path, everywhere, first))


def test_widths_and_layers_are_distinguished(tmp_path):
    with pytest.raises(InputError, match="the weights are 6 wide, the model is 10; take the checkpoint"):
        restore(stored(tmp_path, {}, {"embed_dim": 10}))
    with pytest.raises(InputError, match="weights have 1 layers of attention, the model has 2"):
        restore(stored(tmp_path, {}, {"depth": 2}))
    both = r"'mssa', the model has 'softmax' and the weights are 6 wide, the model is 10"
    with pytest.raises(InputError, match=both):
        restore(stored(tmp_path, {"attention": "mssa"}, {"embed_dim": 10}))


def test_metadata_that_name_two_variants_are_refused(tmp_path):
    said = {"attention": "rpc-sym"}
    path = stored(tmp_path, {"attention": "softmax-sym"}, {"attention": "softmax-sym"}, **said)
    with pytest.raises(
        InputError, match="its attention is 'rpc-sym', but its architecture has 'softmax-sym'"
    ):
        restore(path)


def test_a_loaded_checkpoint_of_another_variant_says_both(tmp_path):
    path = stored(tmp_path, options("primal"), options("rpc-sym"))
    with pytest.raises(InputError, match=r"'primal', .*the model has 'rpc-sym'"):
        workbench.load(f"file:{path}")


def test_a_run_does_not_go_on_from_the_weights_of_another_variant(tmp_path):
    """Two interrupted runs, and the state of one lies in the folder of the other."""
    import shutil

    from workbench.studies.training import train

    class Stopped(Exception):
        pass

    def stop(*_):
        raise Stopped

    for name in ("rpc-sym", "tssa"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("workbench.studies.training.trainer.Trainer.train_epoch", stop)
            with pytest.raises(Stopped):
                train("digits", tmp_path / name, attention=name, epochs=1, limit=10, progress=False)
    shutil.copy(tmp_path / "tssa" / "resume.pt", tmp_path / "rpc-sym" / "resume.pt")
    with pytest.raises(InputError, match=r"resume\.pt .*those of 'tssa'.*, the model has .*'rpc-sym'"):
        train("digits", tmp_path / "rpc-sym", attention="rpc-sym", epochs=1, limit=10, progress=False)
    with pytest.raises(InputError, match='attention: "tssa" there, "rpc-sym" asked for'):
        train("digits", tmp_path / "tssa", attention="rpc-sym", epochs=1, limit=10, progress=False)


def test_the_weights_of_all_layers_count_where_a_file_is_compared_with_its_architecture():
    def check(depth):
        architecture = {"name": "vit", "img_size": 8, "embed_dim": 64, "depth": depth, "num_heads": 2}
        _check_size(architecture, {"weight": torch.zeros(7)}, "a file")

    check(10)  # of 50 000 weights each
    with pytest.raises(
        InputError, match=r"a file does not fit its architecture: it holds 7 weights, and that has 1,5"
    ):
        check(30)
