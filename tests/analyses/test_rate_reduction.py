"""The analyses of wu2025 through `analyze`: what reaches the numerics, and what comes of it."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import workbench
from tests.runs.test_analyze import bert, same, texts, vit
from workbench.analyses.coding_rate import (
    coding_rate,
    coding_rate_compression,
    compression_shares,
    variational_compression,
)
from workbench.analyses.layer import Layer
from workbench.analyses.linalg import head_bases
from workbench.analyses.membership import memberships
from workbench.analyses.patch_segments import patch_segments
from workbench.analyses.subspaces import mean_coherence, subspace_angles
from workbench.attention import replace_attention
from workbench.attention.tssa import token_membership
from workbench.core.errors import InputError
from workbench.runs.analyze import analyze

HEADS, DIM, LAYERS = 3, 5, 2
TSSA, VIT, DIGITS = "bundled:digits-tssa", "bundled:digits-vit", "bundled:digits"


def wide_vit(name="tssa", layers=None, **options):
    """A ViT with a class token and two registers over 4 × 2 patches, random weights away from their start."""
    torch.manual_seed(0)
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=(16, 8), patch_size=4, in_chans=1, embed_dim=HEADS * DIM, depth=LAYERS, num_heads=HEADS,
        num_classes=7, reg_tokens=2,
    )  # fmt: skip
    replace_attention(model, name, layers, **options)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.double().eval()


def images(n=4):
    return torch.randn(n, 1, 16, 8, dtype=torch.float64, generator=torch.manual_seed(1))


def layer_of(model, record, **more):
    return Layer(record, ["0"], None, 0, model=model, **more)


@pytest.mark.parametrize("convention", ["as_published", "as_implemented"])
@pytest.mark.parametrize("causal", [False, True])
def test_membership_of_the_weights_is_the_one_that_the_layer_computes(convention, causal):
    options = {"causal": True, "num_tokens": 11} if causal else {}
    model = wide_vit(convention=convention, **options)
    for record in workbench.capture(model, images(1), sites=["input"]):
        found = memberships(layer_of(model, record), record.input)
        torch.testing.assert_close(found[convention], record.membership)
        assert (
            torch.allclose(found["as_published"], found["as_implemented"]) == causal
        )  # the causal forms differ in their guards only


def test_membership_rows_by_head_and_their_means():
    model = wide_vit(layers=[1], convention="as_implemented")
    rows = analyze("membership", model=model, inputs=images(), per_head=True)
    shares = rows[(rows["metric"] == "membership_share") & rows["head"].notna()]
    sums = shares.groupby(["input", "layer", "convention"])["value"].sum()
    np.testing.assert_allclose(sums, 1)
    assert set(map(tuple, shares[["layer", "convention"]].drop_duplicates().to_numpy())) == {
        (0, "ours"), (1, "as_published"), (1, "as_implemented")
    }  # fmt: skip
    largest = rows[
        (rows["statistic"] == "max") & (rows["layer"] == 1) & (rows["convention"] == "as_published")
    ]
    of_layer = shares[(shares["layer"] == 1) & (shares["convention"] == "as_published")]
    assert largest["value"].tolist() == of_layer.groupby("input")["value"].max().tolist()
    means = analyze("membership", model=model, inputs=images())
    layer = means[means["input"].isna() & (means["layer"] == 1) & (means["convention"] == "as_implemented")]
    entropy = rows[(rows["metric"] == "membership_entropy_share") & (rows["convention"] == "as_implemented")]
    assert layer.set_index("metric")["value"]["membership_entropy_share"] == pytest.approx(
        entropy["value"].mean()
    )
    notes = "4 of 8 memberships (one per input and layer) are the model's own by convention as_implemented"
    assert rows.attrs["notes"] == [notes]


def test_padding_does_not_change_a_membership():
    frame = analyze("membership", model=bert(), inputs=texts((9, 4)), per_head=True)
    alone = analyze(
        "membership", model=bert(), inputs={k: v[1:, :4] for k, v in texts((9, 4)).items()}, per_head=True
    )
    assert set(frame["convention"]) == {"ours"}
    found = frame.loc[frame["input"] == "1", "value"]
    np.testing.assert_allclose(found, alone["value"], rtol=1e-5)


@pytest.fixture
def masks(tmp_path):
    """Masks of three digits, one pixel per patch, that are the heads of layer 1 themselves."""
    rows = analyze("membership", model=TSSA, inputs=DIGITS, n=3, layers=[1], per="token")
    for name, own in rows[rows["kind"] == "patch"].groupby("input"):
        largest = own.loc[own.groupby(["row", "column"])["value"].idxmax()]
        heads = largest.pivot(index="row", columns="column", values="head").to_numpy(int)
        path = tmp_path / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((80 * heads).astype(np.uint8)).save(path)
    return tmp_path


def test_masks_that_are_the_heads_agree_fully_and_permuted_ones_are_at_chance(masks):
    frame = analyze("membership", model=TSSA, inputs=DIGITS, n=3, masks=str(masks))
    rows = frame[(frame["layer"] == 1) & (frame["convention"] == "as_published")].set_index("metric")
    assert rows.loc["membership_ari", "value"] == 1
    assert rows.loc["membership_iou", "value"] == 1
    assert rows.loc["membership_ari", "null"] == "permutation"
    assert rows.loc["membership_ari", "null_low"] < 0 < rows.loc["membership_ari", "null_high"] < 0.1
    assert rows.loc["membership_ari", "z"] > 10
    assert 0.2 < rows.loc["membership_iou", "null_mean"] < 0.5
    without = analyze("membership", model=TSSA, inputs=DIGITS, n=3, masks=str(masks), null_samples=0)
    assert without["null_mean"].isna().all()
    assert without["value"].tolist() == frame["value"].tolist()


def test_chance_depends_on_the_seed_and_not_on_the_batches():
    options = {"model": TSSA, "inputs": DIGITS, "n": 5, "masks": "ink", "null_samples": 3}
    whole = analyze("membership", **options)
    same(analyze("membership", batch_size=2, **options), whole)
    rows = analyze("membership", per_head=True, **options)
    ari = rows[
        (rows["metric"] == "membership_ari") & (rows["layer"] == 0) & (rows["convention"] == "as_implemented")
    ]
    mean = whole[
        (whole["metric"] == "membership_ari")
        & (whole["layer"] == 0)
        & (whole["convention"] == "as_implemented")
    ]
    assert mean["value"].item() == pytest.approx(ari["value"].mean())
    assert mean["null_mean"].item() == pytest.approx(ari["null_mean"].mean())


def test_ink_is_where_the_pixels_are_bright():
    image = np.zeros((16, 8, 3), np.uint8)
    image[4:8, 4:] = 255
    image[8:12, :3] = 200  # three quarters of a patch: 150 on average
    image[12:, 4:] = 120
    assert patch_segments("ink", "a", (4, 2), image).tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    with pytest.raises(InputError, match="given by spec"):
        patch_segments("ink", "a", (4, 2), None)


def test_masks_of_files_by_pixel_and_by_patch(tmp_path):
    image = np.zeros((17, 8, 3), np.uint8)  # a row of pixels more than patches take
    mask = np.zeros((17, 8), np.uint8)
    mask[:4, :4], mask[4:8, 4:7], mask[16] = 9, 4, 250
    Image.fromarray(mask).save(tmp_path / "a.png")
    Image.fromarray(np.array([[5, 0], [0, 3], [0, 0], [0, 5]], np.uint8)).save(tmp_path / "b.png")
    colours = np.zeros((4, 2, 3), np.uint8)
    colours[0, 0], colours[1, 1] = (255, 0, 0), (0, 0, 255)
    Image.fromarray(colours).save(tmp_path / "c.webp", lossless=True)

    def found(name, grid=(4, 2)):
        return patch_segments(str(tmp_path), name, grid, image).tolist()

    assert found("a.jpg") == [2, 0, 0, 1, 0, 0, 0, 0]
    assert found("b.jpeg") == [2, 0, 0, 1, 0, 0, 0, 2]
    assert found("c") == [2, 0, 0, 1, 0, 0, 0, 0]
    with pytest.raises(InputError, match=r"b\.png is 4 × 2; expected 17 × 8 pixels.* or 2 × 2"):
        found("b.jpg", (2, 2))
    with pytest.raises(InputError, match=r"no mask for input 'd\.jpg': looked for"):
        found("d.jpg")
    (tmp_path / "e.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match="cannot be read"):
        found("e")


def test_a_text_has_no_masks_and_no_map(tmp_path):
    with pytest.raises(InputError, match="no patch grid"):
        analyze("membership", model=bert(), inputs=texts(), masks=str(tmp_path))
    with pytest.raises(
        InputError, match="masks must be 'ink', a folder that is there, or none; got 'none/here'"
    ):
        analyze("membership", model=bert(), inputs=texts(), masks="none/here")
    with pytest.raises(InputError, match="measures whole layers"):
        analyze("membership", model=vit(), inputs=images(), heads=[0])


def test_every_layer_is_shown_by_its_own_convention_or_the_one_asked_for():
    model = wide_vit(layers=[0], convention="as_implemented")
    frame = analyze("membership", model=model, inputs=images(2), per="token")
    own = frame[["layer", "convention"]].drop_duplicates().to_numpy().tolist()
    assert own == [[0, "as_implemented"], [1, "ours"]]
    asked = analyze(
        "membership", model=model, inputs=images(2), layers=[0], per="token", convention="as_published"
    )
    assert set(asked["convention"]) == {"as_published"}
    with pytest.raises(InputError, match="membership per token: convention must be 'as_published'"):
        analyze("membership", model=model, inputs=images(2), per="token", convention="text")


def test_rows_of_memberships_are_those_of_every_token_but_padding():
    model = wide_vit(layers=[0], convention="as_implemented")
    frame = analyze("membership", model=model, inputs=images(2), layers=[0], per="token")
    membership = workbench.capture(model, images(2), layers=[0])[0].membership
    assert len(frame) == membership.numel()
    for (name, head), rows in frame.groupby(["input", "head"]):
        np.testing.assert_allclose(rows.sort_values("token")["value"], membership[int(name), head])
    last = frame[
        (frame["input"] == "1") & (frame["head"] == 2) & (frame["row"] == 3) & (frame["column"] == 1)
    ]
    assert last["value"].item() == pytest.approx(float(membership[1, 2, -1]))  # the last patch
    chosen = analyze("membership", model=model, inputs=images(2), layers=[0], heads=[2], per="token")
    assert chosen["value"].tolist() == frame.loc[frame["head"] == 2, "value"].tolist()
    words = analyze("membership", model=bert(), inputs=texts(), per="token")
    assert words.groupby("input")["token"].nunique().tolist() == [9, 4, 7]
    sums = words.groupby(["input", "layer", "token"])["value"].sum()
    np.testing.assert_allclose(sums, 1)


def test_windows_and_single_heads_are_left_out():
    swin = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, patch_size=2, window_size=4, embed_dim=12, depths=(2, 1),
        num_heads=(2, 3), num_classes=7,
    ).eval()  # fmt: skip
    batch = torch.randn(2, 3, 32, 32)
    for name in ("membership", "coding-rate"):
        with pytest.raises(
            InputError, match="nothing to measure; layers 0-2 left out: cuts the image into windows"
        ):
            analyze(name, model=swin, inputs=batch)
    single = timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=4, embed_dim=6, depth=1, num_heads=1, num_classes=0
    ).eval()
    with pytest.raises(InputError, match="a single head"):
        analyze("membership", model=single, inputs=torch.randn(2, 3, 16, 16))


def test_a_file_of_queries_has_no_weights():
    model = vit()
    capture = workbench.capture(model, torch.randn(2, 3, 16, 16), sites=["input", "v"])
    with pytest.raises(InputError, match="reads the model's weights, which a file of q, k, v does not hold"):
        analyze("membership", qkv=capture)


def test_rates_are_those_of_the_streams_and_the_layers_own_weights():
    model = wide_vit(layers=[1], convention="as_implemented")
    batch = images()
    frame = analyze("coding-rate", model=model, inputs=batch, eps=0.7)
    capture = workbench.capture(model, batch, sites=["input", "resid_mid", "resid_post"])
    norm, attention = model.blocks[1].norm1, model.blocks[1].attn
    for site in ("input", "resid_mid", "resid_post"):
        z = getattr(capture[1], site)
        z = (z if site == "input" else norm(z)).detach()
        (w,) = attention.project(z)
        members = token_membership(w, attention.temp, convention="as_implemented").detach()
        expected = {
            ("coding_rate", None): coding_rate(z, 0.7),
            ("coding_rate_compression", None): coding_rate_compression(z, members, 0.7),
            ("coding_rate_reduction", None): coding_rate(z, 0.7) - coding_rate_compression(z, members, 0.7),
            ("coding_rate_variational", None): variational_compression(w.detach(), members, HEADS * DIM, 0.7),
        }
        rows = frame[(frame["layer"] == 1) & (frame["candidate"] == site) & frame["standardize"].isna()]
        for (metric, _), values in expected.items():
            found = rows.loc[rows["metric"] == metric, "value"]
            np.testing.assert_allclose(found, values, rtol=1e-9, err_msg=f"{metric} of {site}")
    conventions = frame.groupby("layer")["convention"].unique()
    assert [list(held) for held in conventions] == [["ours"], ["as_implemented"]]
    assert frame["value"].min() >= 0


def test_orthonormal_subspaces_span_what_the_projections_read():
    model = wide_vit(layers=[1])
    frame = analyze("coding-rate", model=model, inputs=images(2), layers=[0], membership="uniform")
    assert set(frame["convention"]) == {"uniform"}
    z = workbench.capture(model, images(2), layers=[0], sites=["input"])[0].input
    bases = head_bases(
        model.blocks[0].attn.qkv.weight[2 * HEADS * DIM :].detach().unflatten(0, (HEADS, DIM)).mT
    )
    even = torch.full((2, HEADS, z.shape[1]), 1 / HEADS, dtype=torch.float64)
    chosen = (frame["candidate"] == "input") & (frame["standardize"] == "orthonormal")
    expected = variational_compression(z[:, None] @ bases, even, HEADS * DIM)
    np.testing.assert_allclose(frame.loc[chosen, "value"], expected, rtol=1e-9)
    # without groups nothing is saved
    np.testing.assert_allclose(frame.loc[frame["metric"] == "coding_rate_reduction", "value"], 0, atol=1e-12)


def test_streams_as_they_are_and_blocks_that_normalise_last():
    model = wide_vit(layers=[0])
    frame = analyze("coding-rate", model=model, inputs=images(2), layers=[0], normalize="none")
    raw = workbench.capture(model, images(2), layers=[0], sites=["resid_post"])[0].resid_post
    rows = frame[(frame["candidate"] == "resid_post") & (frame["metric"] == "coding_rate")]
    np.testing.assert_allclose(rows["value"], coding_rate(raw), rtol=1e-9)
    last = analyze("coding-rate", model=bert(), inputs=texts((9, 4)))
    assert (
        "8 of 8 streams (two per input and layer) are taken as they are: no norm is known before the attention"
        in (last.attrs["notes"])
    )
    alone = analyze("coding-rate", model=bert(), inputs={k: v[1:, :4] for k, v in texts((9, 4)).items()})
    np.testing.assert_allclose(last.loc[last["input"] == "1", "value"], alone["value"], rtol=1e-5)


def test_rates_do_not_depend_on_the_batches_and_say_what_attention_does():
    options = {"model": TSSA, "inputs": DIGITS, "n": 5}
    whole = analyze("coding-rate", **options)
    same(analyze("coding-rate", batch_size=2, **options), whole)
    shares = compression_shares(whole).set_index(["convention", "step"])
    counted = shares.loc[("as_published", "attention")]
    assert (
        f"attention lowers R_c^var in {counted['lowered']} of 3 layers with membership as_published"
        in whole.attrs["notes"]
    )
    with pytest.raises(InputError, match="eps must be a number from 1e-100 to 1e"):
        analyze("coding-rate", eps=-1, **options)


def test_subspaces_are_those_of_the_weights_without_any_input():
    model = wide_vit(layers=[1])
    frame = analyze("subspaces", model=model, null_samples=4)
    assert frame["input"].isna().all()
    softmax, tssa = (block.attn.qkv.weight.detach() for block in model.blocks)
    by_layer = {"v": softmax[2 * HEADS * DIM :], "q": softmax[: HEADS * DIM]}
    for name, weight in by_layer.items():
        rows = analyze("subspaces", model=model, projection=name, layers=[0], null_samples=0)
        u = weight.unflatten(0, (HEADS, DIM)).mT
        means = rows[rows["head"].isna()].set_index("metric")["value"]
        assert means["coherence_inside"] == pytest.approx(mean_coherence(u).inside.item())
        assert means["coherence_between"] == pytest.approx(mean_coherence(u).between.item())
        angles = rows[rows["metric"] == "subspace_angle"]
        assert angles[["head", "axis", "rank"]].to_numpy().tolist() == [
            [head, f"head {other}", rank]
            for head, other in ((0, 1), (0, 2), (1, 2))
            for rank in range(1, DIM + 1)
        ]
        np.testing.assert_allclose(angles["value"], subspace_angles(u).flatten())
        assert rows["null_mean"].isna().all()
    # the one projection of TSSA, whatever the name
    only = [
        analyze("subspaces", model=model, projection=name, layers=[1], null_samples=2) for name in ("v", "q")
    ]
    assert only[0]["value"].tolist() == only[1]["value"].tolist()
    held = frame[(frame["layer"] == 1) & (frame["metric"] == "coherence_inside")]["value"].item()
    assert held == pytest.approx(mean_coherence(tssa.unflatten(0, (HEADS, DIM)).mT).inside.item())


def test_random_weights_are_at_chance_and_planted_ones_are_not():
    model = wide_vit(layers=[0]).float()
    torch.nn.init.normal_(model.blocks[0].attn.qkv.weight)
    shared = torch.randn(DIM, HEADS * DIM)  # all heads of layer 1 read the same subspace
    model.blocks[1].attn.qkv.weight.data = shared.repeat(9, 1)
    frame = analyze("subspaces", model=model)
    assert set(frame["null"]) == {"isotropic"}
    random, planted = (frame[frame["layer"] == layer] for layer in (0, 1))
    coherences = random[random["metric"].isin(["coherence_inside", "coherence_between"])]
    assert coherences["z"].abs().max() < 4
    between = planted[planted["metric"] == "coherence_between"].iloc[0]
    assert between["value"] > between["null_high"]
    angles = planted[planted["metric"] == "subspace_angle"]
    assert angles["value"].max() < 1e-3
    assert (angles["null_low"] > angles["value"]).all()
    again = analyze("subspaces", model=model, layers=[1], heads="0,2", seed=3)
    assert set(again.dropna(subset="axis")["axis"]) == {"head 2"}
    assert set(again["null_mean"].dropna()).isdisjoint(planted["null_mean"])


def test_subspaces_take_a_model_and_nothing_else():
    for wrong in ({"model": vit(), "inputs": images()}, {"qkv": "a.npz"}, {}):
        with pytest.raises(InputError, match="subspaces reads the weights of a model; give the model only"):
            analyze("subspaces", **wrong)
    with pytest.raises(InputError, match="layer 7"):
        analyze("subspaces", model=vit(), layers=[7])
    with pytest.raises(InputError, match="has no attention"):
        analyze("subspaces", model=torch.nn.Linear(3, 3))


def test_subspace_rows_are_cosines_of_the_picked_directions():
    model = wide_vit()
    run = {"model": model, "layers": [1], "per": "pair"}
    frame = analyze("subspaces", directions=2, seed=1, **run)
    assert len(frame) == (HEADS * 2) ** 2
    u = model.blocks[1].attn.qkv.weight.detach().unflatten(0, (HEADS, DIM)).mT
    for row in frame.sample(9, random_state=0).to_dict("records"):
        a, b = u[row["head"], :, row["direction"]], u[row["other_head"], :, row["other_direction"]]
        assert row["value"] == pytest.approx(abs(float(a @ b / a.norm() / b.norm())))
    assert frame.groupby("head")["direction"].nunique().tolist() == [2, 2, 2]
    everything = analyze("subspaces", directions=None, **run)
    assert len(everything) == (HEADS * DIM) ** 2
    one = analyze("subspaces", directions=2, seed=1, heads=[2], **run)
    assert one["value"].tolist() == frame.query("head == 2 and other_head == 2")["value"].tolist()
    other = analyze("subspaces", directions=2, seed=2, **run)
    assert other[["direction"]].to_numpy().tolist() != frame[["direction"]].to_numpy().tolist()
