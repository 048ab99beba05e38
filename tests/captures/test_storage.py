"""Captures and anyone's q, k, v on disk, and two captures compared."""

from __future__ import annotations

import errno
import io
import math
import pickle
import re
import zipfile
from dataclasses import replace

import joblib
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import workbench
from tests.captures.families import FAMILIES
from workbench.captures import SITES, Capture, LayerRecord, capture, compare, read_qkv, storage
from workbench.captures.storage import read_capture, read_tensors, write_tensors
from workbench.core.errors import InputError, MissingResource

LAYERS, BATCH, HEADS, TOKENS, HEAD_DIM = 4, 2, 3, 7, 5


def operands(*lead: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {site: torch.randn(*lead, TOKENS, HEAD_DIM) for site in "qkv"}


def write(path, tensors: dict[str, torch.Tensor]):
    if path.suffix == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in tensors.items()})
    else:
        save_file(tensors, path)
    return path


# A capture there and back --------------------------------------------------------------------------


def test_a_capture_is_pickled_with_the_name_of_its_model_and_without_the_model(tmp_path):
    model = workbench.load("bundled:digits-vit")
    captured = capture(model, workbench.inputs("bundled:digits", model, n=2), layers=[1])
    for one in (captured, Capture.load(captured.save(tmp_path / "qkv.safetensors"))):
        joblib.dump(one, tmp_path / "qkv.joblib")
        again = joblib.load(tmp_path / "qkv.joblib")
        assert again.model == captured.model
        assert again.model["fingerprint"] == model.fingerprint
        assert torch.equal(again[1].attn, captured[1].attn)
        assert again.tokens.kinds == captured.tokens.kinds


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize(
    "name", ["vit", "deit-distilled", "swin", "xcit", "cait", "bert", "llama", "longformer-global"]
)
def test_a_capture_comes_back_as_it_was(tmp_path, name: str, suffix: str):
    family = FAMILIES[name]
    captured = capture(family.build(), family.batch(), layers=[0, -1], sites=SITES)
    loaded = Capture.load(captured.save(tmp_path / f"a folder/qkv{suffix}"))
    assert [r.index for r in loaded] == [r.index for r in captured]
    for record, other in zip(captured, loaded, strict=True):
        assert (other.path, other.call, other.kind, other.rows_sum_to_one) == (
            record.path, record.call, record.kind, record.rows_sum_to_one,
        )  # fmt: skip
        for site in SITES:
            value, again = getattr(record, site), getattr(other, site)
            if isinstance(value, torch.Tensor):
                assert again.dtype == value.dtype
                assert torch.equal(again, value)
            else:
                assert again == value
        assert record.extra.keys() == other.extra.keys()
        assert all(torch.equal(value, other.extra[key]) for key, value in record.extra.items())
        if record.origin is not None:
            assert torch.equal(other.origin.row, record.origin.row)
            assert other.origin.shift == record.origin.shift
    assert loaded.tokens.kinds == captured.tokens.kinds
    assert loaded.tokens.grid == captured.tokens.grid
    assert torch.equal(loaded.tokens.mask, captured.tokens.mask)
    assert loaded.model == captured.model
    assert (compare(captured, loaded)["relative_difference"] == 0).all()


def test_grids_come_back_in_the_order_they_went_in(tmp_path):
    vit = FAMILIES["vit"]
    captured = capture(vit.build(), vit.batch())
    rows = len(captured.tokens)
    captured.tokens = replace(
        captured.tokens,
        grid=(2, 8),
        image_grids=[[(2, 3), (4, 1)], *([[(number, 7)] for number in range(1, rows)])],
    )
    loaded = Capture.load(captured.save(tmp_path / "grids.safetensors")).tokens
    assert (loaded.grid, loaded.image_grids) == (captured.tokens.grid, captured.tokens.image_grids)


def test_layers_alike_are_stacked_and_others_are_not(tmp_path):
    vit = FAMILIES["vit"]
    tensors = load_file(capture(vit.build(), vit.batch()).save(tmp_path / "vit.safetensors"))
    assert tensors["q"].shape == (3, 2, 4, 17, 6)
    assert tensors["scale"].shape == (3,)
    swin = FAMILIES["swin"]
    tensors = load_file(capture(swin.build(), swin.batch()).save(tmp_path / "swin.safetensors"))
    assert "q" not in tensors
    assert tensors["layers.0.q"].shape != tensors["layers.2.q"].shape


def test_bfloat16_stays_bfloat16(tmp_path):
    family = FAMILIES["vit"]
    captured = capture(family.build().bfloat16(), family.batch(), sites=("q", "k", "v"))
    assert Capture.load(captured.save(tmp_path / "qkv.safetensors"))[0].q.dtype == torch.bfloat16
    with pytest.raises(InputError, match=r"bfloat16, which .npz cannot hold"):
        captured.save(tmp_path / "qkv.npz")


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    family = FAMILIES["vit"]
    captured = capture(family.build(), family.batch(), sites=("q",))
    path = captured.save(tmp_path / "qkv.npz")
    before = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(
        MissingResource, match=r"qkv\.npz: No space left on device; give another path, or free some space"
    ):
        captured.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "taken").write_text("")
    family = FAMILIES["vit"]
    with pytest.raises(MissingResource, match="taken"):
        capture(family.build(), family.batch(), sites=("q",)).save(tmp_path / "taken" / "qkv.npz")


def test_unknown_endings(tmp_path):
    with pytest.raises(InputError, match=r"ends in .safetensors or .npz, not '.bin'"):
        read_qkv(tmp_path / "qkv.bin")


def edited(path, change):
    """Change the metadata of a file, and write it again beside it."""
    tensors, metadata = read_tensors(path)
    change(metadata)
    return write_tensors(path.with_stem("edited"), tensors, metadata)


EDITS = {
    "index": lambda header: header["layers"][1].update(index=4),
    "kind": lambda header: header["layers"][0].update(kind="channel"),
    "source": lambda header: header["layers"][0].update(source="cross"),
    "counts": lambda header: header["layers"][0].update(counts=[3, 3]),
    "inputs": lambda header: header["inputs"].update(n=1000),
    "model": lambda header: header["model"].update(spec="timm:vit_base_patch16_224"),
    "labels": lambda header: header["tokens"]["labels"][0].pop(),
    "kinds": lambda header: header["tokens"]["kinds"][0].reverse(),
    "fewer layers": lambda header: header["layers"].pop(),
    "no digest": lambda header: header.pop("sha256"),
}
UNLIKE = {
    "layers.0.index: Input should be a valid integer": lambda header: header["layers"][0].update(index="0"),
    "layers.0.index: Input should be greater": lambda header: header["layers"][0].update(index=-1),
    "layers.0.kind: Input should be 'token', 'channel' or 'none'": lambda header: header["layers"][0].update(
        kind="tokens"
    ),
    "inputs: Input should be an object": lambda header: header.update(inputs=3),
    "tokens.labels.0: Input should be a valid array": lambda header: header["tokens"].update(labels=[None]),
    "tokens.grid.0: Input should be a valid integer": lambda header: header["tokens"].update(grid=["a", 2]),
    "notes.0: Input should be a valid string": lambda header: header.update(notes=[{}]),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    family = FAMILIES["deit-distilled"]
    captured = capture(family.build(), family.batch())
    captured.inputs = {"spec": "images", "n": 2, "seed": 0, "sha256": None}
    return captured.save(tmp_path_factory.mktemp("captures") / "capture.npz")


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_changed_metadata_is_refused(saved, change):
    assert len(read_qkv(edited(saved, lambda header: None))) == 3
    with pytest.raises(InputError, match="were changed after it was written"):
        read_qkv(edited(saved, change))


@pytest.mark.parametrize("message", UNLIKE)
def test_metadata_of_other_types_names_the_entry(saved, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read_qkv(edited(saved, UNLIKE[message]))


# Anyone's file -------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("lead", [(HEADS,), (BATCH, HEADS), (LAYERS, BATCH, HEADS)], ids=len)
def test_three_to_five_axes(tmp_path, lead: tuple[int, ...], suffix: str):
    tensors = operands(*lead)
    loaded = read_qkv(write(tmp_path / f"x{suffix}", tensors))
    assert len(loaded) == (LAYERS if len(lead) == 3 else 1)
    assert loaded[0].q.shape == (BATCH if len(lead) > 1 else 1, HEADS, TOKENS, HEAD_DIM)
    assert loaded[0].scale == pytest.approx(HEAD_DIM**-0.5)
    assert torch.equal(loaded.stack("v").reshape(tensors["v"].shape), tensors["v"])


def test_scale_and_masks(tmp_path):
    tensors = operands(LAYERS, BATCH, HEADS)
    tensors["scale"] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    tensors["mask"] = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    tensors["mask"][1, 4:] = False
    loaded = read_qkv(write(tmp_path / "x.npz", tensors))
    assert [record.scale for record in loaded] == [1, 2, 3, 4]
    assert loaded[3].mask.shape == (BATCH, 1, 1, TOKENS)
    assert loaded.tokens.kinds[1][4:] == ["padding"] * 3
    tensors["mask"] = torch.ones(1, 1, TOKENS, TOKENS).tril()
    assert read_qkv(write(tmp_path / "x.npz", tensors))[0].mask.dtype == torch.bool


def test_attention_in_a_file_is_used_and_other_tensors_are_noted(tmp_path):
    tensors = operands(BATCH, HEADS)
    tensors["attn"] = torch.eye(TOKENS).expand(BATCH, HEADS, -1, -1).contiguous()
    tensors["gate"] = torch.ones(3)
    loaded = read_qkv(write(tmp_path / "x.safetensors", tensors))
    assert torch.equal(loaded[0].attn, tensors["attn"])
    assert loaded[0].rows_sum_to_one
    assert loaded.sites == ("q", "k", "v", "scale", "attn")
    assert loaded.notes == ["tensors of the file that are not read: gate"]
    frame = workbench.analyze("attention-map", qkv=tmp_path / "x.safetensors")
    assert (frame.loc[frame["metric"] == "attention_entropy", "value"] == 0).all()
    tensors["attn"] = 0.5 * tensors["attn"]
    assert not read_qkv(write(tmp_path / "x.safetensors", tensors))[0].rows_sum_to_one


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_of_eight_bits_are_refused(tmp_path, kind):
    tensors = {site: value.to(kind) for site, value in operands(BATCH, HEADS).items()}
    message = f"holds {str(kind).removeprefix('torch.')}; save it in bfloat16 or a wider type"
    save_file(tensors, tmp_path / "x.safetensors")
    torch.save(tensors, tmp_path / "x.pt")
    for suffix in (".safetensors", ".pt"):
        with pytest.raises(InputError, match=message):
            read_qkv(tmp_path / f"x{suffix}")


def changed(**changes):
    tensors = operands(BATCH, HEADS)
    for name, value in changes.items():
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    return tensors


NAN = torch.randn(BATCH, HEADS, TOKENS, HEAD_DIM)
NAN[1, 2, 3, 4] = math.nan
BAD = {
    "no v; it holds k, q": changed(v=None),
    "q has 2 axes": changed(q=torch.randn(TOKENS, HEAD_DIM)),
    "the batch axis of q is 2, that of k is 3": changed(k=torch.randn(3, HEADS, TOKENS, HEAD_DIM)),
    "q has 3 heads, k and v 2": {
        "q": torch.randn(3, 7, 5), "k": torch.randn(2, 7, 5), "v": torch.randn(2, 7, 5),
    },
    "the head axis of k is 3, that of v is 1": changed(v=torch.randn(BATCH, 1, TOKENS, HEAD_DIM)),
    "the token axis of k is 7, that of v is 8": changed(v=torch.randn(BATCH, HEADS, 8, HEAD_DIM)),
    "the head_dim axis of q is 6, that of k is 5": changed(q=torch.randn(BATCH, HEADS, TOKENS, 6)),
    "k has 1 token": {site: torch.randn(HEADS, 1, 5) for site in "qkv"},
    "k has 1 NaN or infinite values, first at layer 0, batch 1, head 2, token 3": changed(k=NAN),
    "q holds int64": changed(q=torch.ones(BATCH, HEADS, TOKENS, HEAD_DIM, dtype=torch.int64)),
    "scale has shape": changed(scale=torch.ones(3)),
    "mask is .batch, token. =": changed(mask=torch.ones(BATCH, 6, dtype=torch.bool)),
    "attn has shape .1, 2, 3, 7, 6.; q and k need .1, 2, 3, 7, 7.": changed(
        attn=torch.ones(BATCH, HEADS, TOKENS, 6)
    ),
    "attn has 7 NaN": changed(attn=NAN @ torch.ones(HEAD_DIM, TOKENS)),
    "the key axis of mask is 6": changed(mask=torch.ones(BATCH, 1, TOKENS, 6, dtype=torch.bool)),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_what_is_wrong_with_a_file(tmp_path, message: str):
    with pytest.raises(InputError, match=message):
        read_qkv(write(tmp_path / "x.safetensors", BAD[message]))


def test_files_that_are_something_else(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_qkv(tmp_path / "absent.npz")
    for suffix in (".npz", ".safetensors"):
        path = tmp_path / f"text{suffix}"
        path.write_text("not numbers")
        with pytest.raises(InputError, match=f"text{suffix}: not a readable") as caught:
            read_qkv(path)
        assert "pickle" not in str(caught.value)


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    path = tmp_path / "trap.npz"
    with path.open("wb") as file:
        np.savez(file, q=np.array([Trap()], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="trap"):
        read_qkv(path)
    path.write_bytes(pickle.dumps(1))
    with pytest.raises(InputError, match="trap"):
        read_qkv(path)


# Two captures --------------------------------------------------------------------------------------


def test_a_capture_equals_itself_and_the_first_changed_layer_is_found():
    family = FAMILIES["bert"]
    model, batch = family.build(), family.batch()
    before = capture(model, batch)
    assert compare(before, before).attrs["first_layer"] is None
    with torch.no_grad():
        model.encoder.layer[1].attention.self.value.weight[0, 0] += 0.1
    frame = compare(before, capture(model, batch))
    assert list(frame.columns) == ["layer", "path", "site", "relative_difference", "within"]
    assert frame.attrs["first_layer"] == 1
    assert set(frame.loc[~frame["within"], "site"]) == {"v", "head_out"}
    value = before[1].v
    expected = (value - capture(model, batch)[1].v).abs().max() / value.abs().max()
    found = frame.query("layer == 1 and site == 'v'")["relative_difference"].item()
    assert found == pytest.approx(expected.item(), rel=1e-6)


def test_captures_are_equal_to_within_a_hundred_thousandth_unless_told_otherwise():
    values = torch.ones(1, 1, 3, 2, dtype=torch.float64)
    first, near, far = (Capture([LayerRecord(0, "", v=values * (1 + d))], ("v",)) for d in (0, 9e-6, 1.1e-5))
    assert compare(first, near)["within"].all()
    assert not compare(first, far)["within"].any()
    assert compare(first, far, tolerance=2e-5)["within"].all()


def test_eager_and_fused_kernels_compare_equal():
    family = FAMILIES["bert"]
    model, batch = family.build(), family.batch()
    fused = capture(model, batch)
    model.set_attn_implementation("eager")
    eager = capture(model, batch)
    assert fused[0].mask.dtype == torch.bool
    assert eager[0].mask.dtype == torch.float32
    assert compare(fused, eager)["within"].all()


def test_half_precision_differs_by_its_rounding():
    family = FAMILIES["vit"]
    full = capture(family.build(), family.batch())
    half = capture(family.build().bfloat16(), family.batch())
    frame = compare(full, half, tolerance=0.1)
    assert frame["within"].all()
    assert compare(full, half).attrs["first_layer"] == 0


def test_captures_that_cannot_be_compared():
    vit, deit = FAMILIES["vit"], FAMILIES["deit-distilled"]
    a, b = capture(vit.build(), vit.batch()), capture(deit.build(), deit.batch())
    with pytest.raises(
        InputError, match="layer 0, q: the token axis is 17 in the first capture, 18 in the second"
    ):
        compare(a, b)
    with pytest.raises(InputError, match=r"b must be a Capture; got 'b\.safetensors'"):
        compare(a, "b.safetensors")
    with pytest.raises(InputError, match="different layers"):
        compare(a, capture(vit.build(), vit.batch(), layers=0))
    with pytest.raises(InputError, match="share no site"):
        compare(
            capture(vit.build(), vit.batch(), sites=("q",)), capture(vit.build(), vit.batch(), sites=("k",))
        )
    with pytest.raises(InputError, match="tolerance"):
        compare(a, a, tolerance=-1)


def test_an_array_that_claims_more_than_there_is_names_its_file(tmp_path):
    """As the header of one says that was written with a wrong shape, or by somebody who means harm: 21.8 TiB."""
    path = tmp_path / "large.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (3 * 10**12,)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("q.npy", header.getvalue() + bytes(64))
    with pytest.raises(InputError, match=r"large\.npz: cannot be read as \.npz"):
        read_qkv(path)


@pytest.mark.parametrize(
    ("values", "kind"), [([0.0, 1.0, 1.0], torch.bool), ([0.0, 1.0, -2.0], torch.float32)]
)
def test_a_float_mask_is_added_unless_it_holds_nothing_but_zeros_and_ones(tmp_path, values, kind):
    mask = torch.tensor(values).repeat(TOKENS)[:TOKENS].expand(1, 1, TOKENS, TOKENS).contiguous()
    held = read_qkv(write(tmp_path / "a.npz", operands(1, HEADS) | {"mask": mask})).layers[0].mask
    assert held.dtype == kind
    assert torch.equal(held.to(mask), mask)


@pytest.mark.parametrize("version", [99, 1, "2", None])
def test_a_capture_of_another_format_or_of_none_is_refused(tmp_path, version):
    path = write_tensors(tmp_path / "a.npz", {}, {"format": "capture", "format_version": version})
    with pytest.raises(InputError, match="reads capture format 3"):
        read_qkv(path)


def test_an_archive_that_unpacks_to_far_more_than_it_is_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "packed.npz"
    np.savez_compressed(path, q=np.zeros((1, 1, 4, 10**5)))
    with pytest.raises(InputError, match="no k, v"):
        read_capture(path)  # small as it is, it may be
    monkeypatch.setattr(storage, "_MOST_UNPACKED", 10**5)
    with pytest.raises(
        InputError, match=r"packed\.npz: [\d,]+ bytes that unpack to 3,200,128 hold no queries"
    ):
        read_capture(path)
