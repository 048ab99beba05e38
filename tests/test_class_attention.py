"""What the class token attends to, through `analyze` and as rows: the models' own attention, families and refusals."""

import numpy as np
import pandas as pd
import pytest
import timm
import torch
from PIL import Image

import workbench
from tests.captures.families import FAMILIES
from tests.runs.test_analyze import bert, gpt2, same, texts
from workbench.analyses.masks import patch_foreground
from workbench.captures.tokens import prefix_kinds
from workbench.core.errors import InputError, UnknownName
from workbench.runs.analyze import analyze

HEADS, DIM, LAYERS = 3, 5, 2
PATCHES = (4, 2)
VIT, DIGITS, TEXT, PROSE = "bundled:digits-vit", "bundled:digits", "bundled:prose-softmax", "bundled:prose"
WITH_CLASS_TOKEN = (
    "vit",
    "deit-distilled",
    "beit",
    "eva",
    "xcit",
    "xcit-tokens-norm",
    "cait",
    "tost",
    "hf-vit",
)


def narrow_vit(**options):
    """A ViT over 4 × 2 patches, with a class token and two registers unless told otherwise, away from its start."""
    torch.manual_seed(0)
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=(16, 8), patch_size=4, in_chans=1, embed_dim=HEADS * DIM, depth=LAYERS, num_heads=HEADS,
        num_classes=7, **{"reg_tokens": 2} | options,
    )  # fmt: skip
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.double().eval()


def images(n=4):
    return torch.randn(n, 1, 16, 8, dtype=torch.float64, generator=torch.manual_seed(1))


def row_of(frame, **where):
    """The values of one row of attention, token by token."""
    chosen = frame[np.logical_and.reduce([frame[name] == value for name, value in where.items()])]
    return chosen.sort_values("key")["value"].to_numpy()


@pytest.mark.parametrize("name", WITH_CLASS_TOKEN)
def test_every_head_is_the_row_that_the_model_computes_itself(name):
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    own = [attn if attn is None else attn.detach() for attn in family.own_attention(model, batch)]
    prefix = prefix_kinds(model)
    frame = workbench.class_attention_frame(model, batch)
    assert set(frame["query"]) == {"class"}
    single = [index for index, attn in enumerate(own) if attn is not None and attn.shape[-2] == 1]
    read = single or range(
        len(own)
    )  # class-attention layers where there are such: the others have no class token
    assert sorted(frame["layer"].unique()) == [*read]
    for layer in read:
        for number in (0, 1):
            for head, expected in enumerate(own[layer][number, :, 0]):
                where = {"layer": layer, "input": str(number), "candidate": "head", "head": head}
                np.testing.assert_allclose(row_of(frame, **where), expected, rtol=1e-5, atol=2e-6)
    kinds = frame.drop_duplicates("key").sort_values("key")["kind"].tolist()
    assert kinds == [*prefix, *["patch"] * (len(kinds) - len(prefix))]


def test_two_prefix_tokens_and_registers_leave_the_patches_on_their_grid():
    for model, prefix in (
        (narrow_vit(), ["class", "register", "register"]),
        (narrow_vit(reg_tokens=0), ["class"]),
    ):
        frame = workbench.class_attention_frame(model, images(2), [1])
        attn = workbench.capture(model, images(2), layers=[1], sites=["attn"])[1].attn
        one = frame[(frame["input"] == "1") & (frame["candidate"] == "head") & (frame["head"] == 2)]
        assert one["kind"].tolist() == prefix + ["patch"] * 8
        patches = one[one["kind"] == "patch"]
        assert list(zip(patches["row"], patches["column"], strict=True)) == [
            (i // 2, i % 2) for i in range(8)
        ]
        at = patches[(patches["row"] == 3) & (patches["column"] == 0)]
        assert at["value"].item() == attn[1, 2, 0, len(prefix) + 6]
        assert one["row"].isna().tolist() == [kind != "patch" for kind in one["kind"]]


def test_the_mean_is_that_of_the_heads_and_the_measures_are_of_the_rows():
    model = narrow_vit()
    frame = workbench.class_attention_frame(model, images())
    heads, mean = (frame[frame["candidate"] == name] for name in ("head", "mean"))
    by_token = heads.groupby(["layer", "input", "key"])["value"].mean()
    np.testing.assert_allclose(mean.set_index(["layer", "input", "key"])["value"].sort_index(), by_token)
    rows = analyze("class-attention", model=model, inputs=images(), per_head=True, tokens=True)
    assert set(rows["convention"]) == {"class"}
    given = rows[(rows["metric"] == "class_attention") & (rows["candidate"] == "head")]
    places = ["layer", "input", "head"]
    in_order = heads.sort_values([*places, "key"])["value"]
    np.testing.assert_allclose(given.sort_values([*places, "rank"])["value"], in_order)
    assert given["rank"].max() == 11
    prefix = rows[(rows["metric"] == "class_attention_prefix") & (rows["candidate"] == "head")]
    expected = heads[heads["kind"] != "patch"].groupby(places)["value"].sum()
    np.testing.assert_allclose(prefix.sort_values(places)["value"], expected)
    diversity = rows[rows["metric"] == "class_attention_diversity"]
    assert len(diversity) == LAYERS * 4
    assert diversity["candidate"].isna().all()


def test_means_over_heads_and_inputs_do_not_depend_on_the_batches():
    options = {"model": VIT, "inputs": DIGITS, "n": 5, "masks": "ink", "null_samples": 3, "rollout": True}
    whole = analyze("class-attention", **options)
    same(analyze("class-attention", batch_size=2, **options), whole)
    rows = analyze("class-attention", per_head=True, **options)
    for candidate in ("head", "mean", "rollout"):
        for metric in ("class_attention_mask", "class_attention_spread"):
            chosen = (rows["metric"] == metric) & (rows["candidate"] == candidate) & (rows["layer"] == 2)
            mean = whole[
                (whole["metric"] == metric) & (whole["candidate"] == candidate) & (whole["layer"] == 2)
            ]
            assert mean["value"].item() == pytest.approx(rows.loc[chosen, "value"].mean())
    chosen = analyze("class-attention", model=narrow_vit(), inputs=images(), per_head=True, heads="0,2")
    assert set(chosen["head"].dropna()) == {0, 2}


def test_rollout_multiplies_all_layers_whichever_are_shown():
    model, batch = narrow_vit(), images(2)
    capture = workbench.capture(model, batch, sites=["attn"])
    rolled = torch.eye(11, dtype=torch.float64)
    for record in capture:
        rolled = (record.attn.mean(1) + torch.eye(11)) / 2 @ rolled
    frame = workbench.class_attention_frame(model, batch, [-1], rollout=True)
    assert set(frame["layer"]) == {1}
    np.testing.assert_allclose(row_of(frame, input="1", candidate="rollout"), rolled[1, 0])
    rows = analyze("class-attention", model=model, inputs=batch, rollout=True, tokens=True, per_head=True)
    found = rows[
        (rows["metric"] == "class_attention") & (rows["candidate"] == "rollout") & (rows["layer"] == 1)
    ]
    np.testing.assert_allclose(found[found["input"] == "0"]["value"], rolled[0, 0])
    with pytest.raises(InputError, match="rollout to layer 1 needs all layers from the first"):
        analyze("class-attention", model=model, inputs=batch, rollout=True, layers=[1])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("xcit", "layers attend 0-2 from channel to channel; 3 from the class token alone"),
        ("tost", "layers attend 0-2 without a map from token to token; 3 from the class token alone"),
        (
            "cait",
            "layers attend 0-2 with rows that are no distributions over tokens; 3 from the class token alone",
        ),
    ],
)
def test_rollout_is_refused_where_layers_have_no_map_of_tokens(name, told):
    model, batch = FAMILIES[name].build(), FAMILIES[name].batch()
    for run in (
        lambda: analyze("class-attention", model=model, inputs=batch, rollout=True),
        lambda: workbench.class_attention_frame(model, batch, rollout=True),
    ):
        with pytest.raises(InputError, match=told):
            run()


def test_models_without_a_class_token_say_so_and_have_the_mean_query():
    pooled = narrow_vit(class_token=False, reg_tokens=0, global_pool="avg")
    told = "has no class token, and is not causal; choose one with query: mean"
    with pytest.raises(InputError, match=told):
        analyze("class-attention", model=pooled, inputs=images())
    with pytest.raises(InputError, match=f"no class attention: layer 1 {told}"):
        workbench.class_attention_frame(pooled, images(), [1])
    frame = workbench.class_attention_frame(pooled, images(2), [1], query="mean")
    attn = workbench.capture(pooled, images(2), layers=[1], sites=["attn"])[1].attn
    np.testing.assert_allclose(row_of(frame, input="1", candidate="head", head=0), attn[1, 0].mean(0))
    with pytest.raises(InputError, match="cuts the image into windows"):
        workbench.class_attention_frame(FAMILIES["swin"].build(), FAMILIES["swin"].batch(), query="mean")
    with pytest.raises(UnknownName, match="middle"):
        workbench.class_attention_frame(pooled, images(), query="middle")


def test_a_causal_model_is_read_from_its_last_token_and_padding_is_left_out():
    model, batch = gpt2(), texts((9, 4))
    frame = workbench.class_attention_frame(model, batch)
    assert set(frame["query"]) == {"last"}
    captured = workbench.capture(model, batch, sites=["attn"])
    for number, length in (("0", 9), ("1", 4)):
        found = row_of(frame, input=number, layer=1, candidate="head", head=2)
        np.testing.assert_allclose(found, captured[1].attn[int(number), 2, length - 1, :length])
    rows = analyze("class-attention", model=model, inputs=batch)
    assert "4 of 4 rows (one per input and layer) are not a class token's but: last" in rows.attrs["notes"]
    assert "class_attention_prefix" not in set(rows["metric"])
    alone = analyze(
        "class-attention", model=model, inputs={k: v[1:, :4] for k, v in batch.items()}, per_head=True
    )
    padded = analyze("class-attention", model=model, inputs=batch, per_head=True)
    np.testing.assert_allclose(padded.loc[padded["input"] == "1", "value"], alone["value"], rtol=1e-4)


def test_padding_in_front_does_not_hide_that_a_model_is_causal():
    batch = {name: ids.flip(1) for name, ids in texts((9, 4)).items()}
    frame = workbench.class_attention_frame(gpt2(), batch, [0])
    assert set(frame["query"]) == {"last"}
    one = frame[(frame["input"] == "1") & (frame["candidate"] == "mean")]
    assert one["key"].tolist() == [5, 6, 7, 8]
    assert one["value"].sum() == pytest.approx(1)


def test_texts_of_ids_alone_have_no_class_token_unless_a_query_is_chosen():
    with pytest.raises(InputError, match="has no class token, and is not causal"):
        analyze("class-attention", model=bert(), inputs=texts())
    frame = workbench.class_attention_frame(bert(), texts(), query="first")
    captured = workbench.capture(bert(), texts(), sites=["attn"])
    np.testing.assert_allclose(
        row_of(frame, input="0", layer=0, candidate="mean"), captured[0].attn[0, :, 0].mean(0)
    )
    mean = workbench.class_attention_frame(bert(), texts(), query="mean")
    expected = captured[1].attn[1, 2, :4, :4].mean(0)
    np.testing.assert_allclose(
        row_of(mean, input="1", layer=1, candidate="head", head=2), expected, rtol=1e-6
    )


def test_a_tokenizer_names_the_class_token_and_the_words():
    model = workbench.load("all-MiniLM-L6-v2")
    given = workbench.inputs(PROSE, model, n=2, max_length=12)
    frame = workbench.class_attention_frame(model, given, [-1])
    first = frame[(frame["input"] == given.ids[0]) & (frame["candidate"] == "mean")]
    assert set(frame["query"]) == {"class"}
    assert first["label"].tolist() == given.tokens.labels[0]
    assert first["kind"].tolist() == ["class", *["word"] * 10, "special"]
    rows = analyze("class-attention", model=model, inputs=given, layers=[-1], per_head=True)
    prefix = rows[(rows["metric"] == "class_attention_prefix") & (rows["candidate"] == "mean")].iloc[0]
    assert prefix["value"] == pytest.approx(first["value"].iloc[[0, -1]].sum())


def test_foreground_is_ink_or_what_is_not_black(tmp_path):
    mask = np.zeros((16, 8), np.uint8)
    mask[:4, :4], mask[4:8, 4:7], mask[15] = 9, 4, 250
    Image.fromarray(mask).save(tmp_path / "a.png")
    picture = np.zeros((16, 8, 3), np.uint8)
    picture[4:8, 4:] = 255
    found = patch_foreground(str(tmp_path), "a.jpg", PATCHES, picture)
    assert found.tolist() == [True, False, False, True, False, False, False, False]
    assert (
        patch_foreground("ink", "a", PATCHES, picture).tolist() == [False, False, False, True] + [False] * 4
    )
    with pytest.raises(InputError, match=r"a\.png is 16 × 8; expected 8 × 8 pixels.* or 4 × 2"):
        patch_foreground(str(tmp_path), "a", PATCHES, picture[:8])


def test_attention_on_a_mask_and_its_chance(tmp_path):
    model, batch = narrow_vit(), images(3)
    frame = workbench.class_attention_frame(model, batch)
    patches = frame[(frame["kind"] == "patch") & (frame["candidate"] == "mean") & (frame["layer"] == 1)]
    table = patches.pivot_table(index="input", columns=["row", "column"], values="value").to_numpy()
    for number, values in enumerate(table):  # the three patches that get most
        mask = (values >= np.sort(values)[-3]).reshape(PATCHES)
        Image.fromarray((255 * mask).astype(np.uint8)).save(tmp_path / f"{number}.png")
    options = {"model": model, "inputs": batch, "layers": [1], "masks": str(tmp_path)}
    rows = analyze("class-attention", **options)
    found = rows[
        (rows["metric"] == "class_attention_mask") & (rows["candidate"] == "mean") & (rows["layer"] == 1)
    ]
    shares = np.sort(table)[:, -3:].sum(-1) / table.sum(-1)
    assert found["value"].item() == pytest.approx(shares.mean())
    assert found["null"].item() == "permutation"
    assert found["null_low"].item() < 3 / 8 < found["null_high"].item() < found["value"].item()
    without = analyze("class-attention", null_samples=0, **options)
    assert without["null_mean"].isna().all()
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(tmp_path / "0.png")
    with pytest.raises(InputError, match=r"0\.png is 5 × 5; expected 4 × 2, one pixel per patch"):
        analyze("class-attention", **options)


def test_a_text_has_no_masks(tmp_path):
    with pytest.raises(InputError, match="there is no patch grid: the tokens are word"):
        analyze("class-attention", model=gpt2(), inputs=texts((9, 4)), masks=str(tmp_path))


def test_a_file_of_queries_and_keys_gives_the_same_numbers(tmp_path):
    model = narrow_vit()
    path = workbench.capture(model, images(), sites=["q", "k", "v", "mask", "scale"]).save(
        tmp_path / "a.safetensors"
    )
    found, expected = (
        analyze("class-attention", per_head=True, **given)
        for given in ({"qkv": path}, {"model": model, "inputs": images()})
    )
    np.testing.assert_allclose(found["value"], expected["value"], rtol=1e-6)


def test_a_character_model_is_causal_too():
    model = workbench.load(TEXT)
    given = workbench.inputs(PROSE, model, n=1, max_length=16)
    frame = workbench.class_attention_frame(model, given, [0], rollout=True)
    assert set(frame["query"]) == {"last"}
    sums = frame.groupby(["candidate", "head"], dropna=False)["value"].sum()
    np.testing.assert_allclose(sums, 1, rtol=1e-6)
    assert isinstance(frame.attrs["provenance"][0], dict)
    assert not frame.duplicated(["candidate", "head", "key"]).any()
    assert pd.isna(frame["row"]).all()
