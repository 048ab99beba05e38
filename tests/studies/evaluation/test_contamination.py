"""Contaminated images and what S makes of them: the block is where it is said to be, planted marks are found."""

import math

import pandas as pd
import pytest
import torch

import workbench
from workbench.analyses.layer import Layer
from workbench.analyses.robust_components import (
    contamination_scores,
    detection_auc,
    found_contamination,
    token_size,
)
from workbench.captures import LayerRecord, TokenInfo
from workbench.core.errors import InputError, UnknownName
from workbench.core.intervals import mean_interval
from workbench.papers.verdicts import decide
from workbench.studies.evaluation import contamination
from workbench.studies.evaluation.contamination import EPSILON, contaminate, contamination_frame, sparse_maps

SIDE, PATCH = 3, 2
DIGITS = "bundled:digits"


@pytest.fixture(scope="module")
def model():
    return workbench.load("bundled:digits-rpc-sym")


@pytest.fixture(scope="module")
def noisy(model):
    return contaminate(model, DIGITS, "noise", n=5, seed=3, side=SIDE)


def blocks(images):
    """(top, left) of every contaminated block, which must be one of SIDE × SIDE patches."""
    places = []
    for marked in images.marked:
        rows, columns = marked.nonzero(as_tuple=True)
        assert marked.sum() == SIDE * SIDE
        assert rows.max() - rows.min() == columns.max() - columns.min() == SIDE - 1
        places.append((rows.min().item(), columns.min().item()))
    return places


@pytest.mark.parametrize("kind", ["noise", "salt-and-pepper", "fgsm"])
def test_only_the_block_is_changed(model, kind):
    if kind == "fgsm":
        pytest.importorskip("art", reason="the attack library is an extra")
    images = contaminate(model, DIGITS, kind, n=4, seed=3, side=SIDE)
    for number, (row, column) in enumerate(blocks(images)):
        before, after = images.clean.pixels[number], images.pixels[number]
        inside = torch.zeros_like(before, dtype=torch.bool)
        size = SIDE * PATCH
        inside[:, row * PATCH : row * PATCH + size, column * PATCH : column * PATCH + size] = True
        assert torch.equal(after[~inside], before[~inside])
        assert (after[inside] != before[inside]).double().mean() > 0.3
        assert after.min() >= 0
        assert after.max() <= 1
        if kind == "salt-and-pepper":
            assert set(after[inside].tolist()) == {0.0, 1.0}
        if kind == "fgsm":
            assert (after - before).abs().max() <= EPSILON + 1e-6


def test_places_depend_on_the_image_and_the_seed_alone(model, noisy):
    fewer = contaminate(model, DIGITS, "salt-and-pepper", n=2, seed=3, side=SIDE)
    assert torch.equal(fewer.marked, noisy.marked[:2])
    assert torch.equal(contaminate(model, DIGITS, "noise", n=2, seed=3).pixels, noisy.pixels[:2])
    assert len(set(blocks(noisy))) > 1
    other = contaminate(model, DIGITS, "noise", n=5, seed=4, side=SIDE)
    assert blocks(other) != blocks(noisy)


def test_a_slice_holds_its_images_with_all_that_is_theirs(noisy):
    part = noisy[1:3]
    assert len(part) == 2
    assert part.clean.ids == noisy.clean.ids[1:3]
    assert torch.equal(part.marked, noisy.marked[1:3])
    clean, after = part.images()
    assert clean[0].shape == after[0].shape == (16, 16, 1)


def test_requests_that_cannot_be(model):
    with pytest.raises(UnknownName, match="salt-and-pepper"):
        contaminate(model, DIGITS, "salt-and-peper", n=1)
    for side in (0, 8, 2.0, True):
        with pytest.raises(InputError, match="from 1 to 7 on a grid of 8 × 8"):
            contaminate(model, DIGITS, "noise", n=1, side=side)
    plain = workbench.load("bundled:digits-vit")
    images = contaminate(plain, DIGITS, "noise", n=1)
    with pytest.raises(InputError, match="no layer of bundled:digits-vit performs a pursuit"):
        contamination_frame(plain, images)
    with pytest.raises(InputError, match="no layer of bundled:digits-vit performs a pursuit"):
        sparse_maps(plain, images)
    with pytest.raises(InputError, match="layer 2 of bundled:digits-rpc-sym performs no pursuit"):
        sparse_maps(model, images, layer=2)
    with pytest.raises(InputError, match="null_samples"):
        contamination_frame(model, images, null_samples=1)


def value(frame, metric, candidate, name=None):
    rows = frame[(frame["metric"] == metric) & (frame["candidate"] == candidate) & frame["layer"].isna()]
    rows = rows[rows["input"].isna() if name is None else rows["input"] == name]
    assert len(rows) == 1
    return rows["value"].item()


def test_the_frame_holds_what_a_capture_gives(model, noisy):
    frame = contamination_frame(model, noisy, null_samples=4, seed=1)
    records = [
        workbench.capture(model, noisy.classifier.prepared(pixels), layers=[0])[0]
        for pixels in (noisy.clean.pixels, noisy.pixels)
    ]
    marked = noisy.marked.flatten(1)
    for candidate, part in (
        ("clean", records[0].sparse),
        ("sparse", records[1].sparse),
        ("change", records[1].sparse - records[0].sparse),
    ):
        auc = detection_auc(token_size(part)[:, 1:], marked)  # without the class token
        assert value(frame, "contamination_auc", candidate) == pytest.approx(auc.mean().item())
        first = value(frame, "contamination_auc", candidate, noisy.clean.ids[0])
        assert first == pytest.approx(auc[0].item())
    zeros = (records[1].sparse == 0).double().mean().item()
    assert value(frame, "sparse_zeros", "contaminated") == pytest.approx(zeros)
    assert set(frame["contamination"]) == {"noise"}
    null = frame[frame["metric"].str.startswith("contamination") & frame["input"].isna()]
    assert (null["null"] == "permutation").all()
    assert "are correctly classified" in frame.attrs["notes"][0]
    assert frame.attrs["provenance"]["model"]["spec"] == "bundled:digits-rpc-sym"


def test_the_batches_change_nothing(model, noisy, monkeypatch):
    whole = contamination_frame(model, noisy, null_samples=3, pursuit=False)
    monkeypatch.setattr(contamination, "BATCH", 2)
    parts = contamination_frame(model, noisy, null_samples=3, pursuit=False)
    for column in ("value", "null_mean", "null_low", "z"):
        torch.testing.assert_close(
            torch.tensor(parts[column].to_numpy(float)), torch.tensor(whole[column].to_numpy(float)),
            rtol=1e-4, atol=1e-6, equal_nan=True,
        )  # fmt: skip


ROWS, COLUMNS, HEADS, DIM = 4, 5, 3, 6


def layer(sparse, keys=None, ids=("a", "b")):
    kinds = [["class", *["patch"] * (ROWS * COLUMNS)]] * len(ids)
    tokens = TokenInfo(
        kinds, kinds, (ROWS, COLUMNS), torch.ones(len(ids), 1 + ROWS * COLUMNS, dtype=torch.bool)
    )
    keys = torch.randn(sparse.shape, generator=torch.manual_seed(7)) if keys is None else keys
    extra = {"sparse": sparse, "low_rank": keys - sparse, "projected_k": keys}
    return Layer(LayerRecord(0, "blocks.0.attn", extra=extra), list(ids), tokens, seed=5)


def marks(*chosen):
    marked = torch.zeros(len(chosen), ROWS * COLUMNS, dtype=torch.bool)
    for row, places in zip(marked, chosen, strict=True):
        row[list(places)] = True
    return marked


def test_an_s_that_lies_on_the_marked_patches_is_found_and_chance_is_not():
    marked = marks((0, 1, 6), (12, 13, 14, 18))
    over = torch.cat([torch.ones(2, 1, dtype=torch.bool), marked], 1)  # the class token counts for nothing
    sparse = over[:, None, :, None] * torch.randn(
        2, HEADS, 1 + ROWS * COLUMNS, DIM, generator=torch.manual_seed(0)
    )
    clean = layer(torch.zeros_like(sparse))
    found = {
        (m.metric, m.columns["candidate"]): m for m in found_contamination(clean, layer(sparse), marked, 400)
    }
    for candidate in ("sparse", "change"):
        auc, share = (found[metric, candidate] for metric in ("contamination_auc", "contamination_share"))
        assert auc.values.tolist() == [1, 1]
        assert share.values.tolist() == pytest.approx([1, 1])
        assert auc.null_samples["permutation"].mean(-1).tolist() == pytest.approx([0.5, 0.5], abs=0.04)
        assert share.null_samples["permutation"].mean(-1).tolist() == pytest.approx(
            [3 / 20, 4 / 20], abs=0.03
        )
    assert found["contamination_auc", "clean"].values.tolist() == [0.5, 0.5]  # S = 0 tells nothing
    assert found["contamination_share", "clean"].values.isnan().all()


def test_an_s_that_knows_nothing_of_the_marks_is_near_chance():
    images = 60
    sparse = torch.randn(images, HEADS, 1 + ROWS * COLUMNS, DIM, generator=torch.manual_seed(1))
    names = [str(number) for number in range(images)]
    marked = marks(*([3, 4, 8, 9] for _ in names))
    own = layer(sparse, ids=names)
    auc = next(iter(found_contamination(own, own, marked, 0, pursuit=False))).values
    assert auc.mean().item() == pytest.approx(0.5, abs=4 * 0.166 / math.sqrt(images))


def test_pcp_finds_sparse_entries_planted_in_keys_of_low_rank():
    source = torch.manual_seed(2)
    tokens = 1 + ROWS * COLUMNS
    keys = torch.randn(1, HEADS, tokens, 1, generator=source) @ torch.randn(
        1, HEADS, 1, DIM, generator=source
    )
    marked = marks((7,))
    keys[:, :, 1:][:, :, marked[0], :2] += 20
    own = layer(torch.zeros_like(keys), keys, ["a"])
    scores = contamination_scores(own, own)
    assert detection_auc(scores["pursuit"], marked).item() == 1


def test_maps_are_the_sizes_of_the_patches(model, noisy):
    maps = sparse_maps(model, noisy[:2])
    record = workbench.capture(model, noisy.classifier.prepared(noisy.pixels[:2]), layers=[0])[0]
    expected = token_size(record.sparse)[:, 1:].unflatten(-1, (8, 8))
    torch.testing.assert_close(maps.values[1], expected, rtol=1e-5, atol=1e-6)
    assert maps.values.shape == (3, 2, 8, 8)
    assert maps.layer == 0
    frame = maps.frame()
    assert len(frame) == 3 * 2 * 64
    chosen = frame[(frame["image"] == "contaminated") & (frame["input"] == maps.ids[1])]
    assert chosen[chosen["marked"]]["value"].sum() == pytest.approx(
        maps.values[1, 1][maps.marked[1]].sum().item()
    )


def test_the_analysis_by_name_reads_the_layers_that_split(model):
    images = workbench.inputs(DIGITS, model, n=3)
    heads = workbench.analyze("robust-components", model=model, inputs=images, per_head=True)
    assert set(heads["layer"]) == {0}
    assert any("performs no pursuit" in note for note in heads.attrs["notes"])
    record = workbench.capture(model, images, layers=[0])[0]
    gap = (record.projected_k - record.low_rank - record.sparse).norm(dim=(-2, -1))
    gap = gap / record.projected_k.norm(dim=(-2, -1))
    rows = heads[heads["metric"] == "pursuit_gap"].sort_values(["head"], kind="stable")
    assert rows["value"].tolist() == pytest.approx(gap.T.flatten().tolist(), rel=1e-4)
    means = workbench.analyze("robust-components", model=model, inputs=images)
    overall = means[means[["input", "layer"]].isna().all(axis=1)].set_index("metric")["value"]
    assert overall["pursuit_gap"] == pytest.approx(rows["value"].mean())
    with pytest.raises(InputError, match="performs no pursuit"):
        workbench.analyze("robust-components", model="bundled:digits-vit", inputs=DIGITS, n=1)


def test_the_findings_tell_the_auc_beside_the_clean_image_and_the_permuted_patches(model, noisy):
    frame = contamination_frame(model, noisy, null_samples=4)
    own, overall = contamination.contamination_findings(frame)
    level = frame[frame[["layer", "head"]].isna().all(axis=1) & (frame["metric"] == "contamination_auc")]
    auc = level[level["input"].notna()].pivot(index="input", columns="candidate", values="value")
    gain = mean_interval(auc["sparse"] - auc["clean"])
    assert own.startswith(
        f"noise: ‖S_j‖ tells the contaminated patches with an AUC of {said(auc['sparse'])},"
    )
    assert (
        f"the same places of the clean image with {said(auc['clean'])}, a gain of {gain.words('.3f')};" in own
    )
    band = level[level["input"].isna() & (level["candidate"] == "sparse")].iloc[0]
    assert f"; range of 4 permutation null samples [{band['null_low']:.3f}, {band['null_high']:.3f}]" in own
    assert overall.endswith(f"That S picks contamination out: {decide(gain, (0, math.inf))}.")
    for shift, verdict in ((2.0, "holds"), (-2.0, "fails")):
        better = frame["value"] + shift * (frame["candidate"] == "sparse").astype(float)
        assert verdict in contamination.contamination_findings(frame.assign(value=better))[-1]
    weaker = frame["value"] - 0.5 * (frame["candidate"] == "sparse").astype(float)
    both = pd.concat([frame, frame.assign(contamination="blocks", value=weaker)])
    *_, overall = contamination.contamination_findings(both)
    mean_gain = mean_interval(auc["sparse"] - auc["clean"] - 0.25)
    assert f"Over all kinds the gain is {mean_gain.words('.3f')}." in overall


def said(values):
    return mean_interval(values).words(".3f")
