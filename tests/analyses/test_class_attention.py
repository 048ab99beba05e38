"""The class token's row, its rollout, and measures of where it lies, beside loops over single numbers."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import timm
import torch
from PIL import Image
from scipy.spatial.distance import jensenshannon

import workbench
from tests.captures.families import FAMILIES
from tests.runs.test_analyze import bert, gpt2, same, texts
from workbench.analyses.attention_map import permuted_heads
from workbench.analyses.class_attention import (
    Options,
    _null_rows,
    attention_rollout,
    concentration,
    head_diversity,
    is_causal,
    mask_share,
    query_attention,
)
from workbench.analyses.layer import grid_positions
from workbench.analyses.patch_segments import patch_foreground
from workbench.analyses.reductions import Diversity
from workbench.analyses.tiles import Maps
from workbench.captures.token_labels import special_kinds
from workbench.core.errors import InputError
from workbench.runs.analyze import analyze

BATCH, HEADS, TOKENS, LAYERS = 2, 3, 7, 4
ROWS, COLUMNS = 2, 5


def maps(*shape, seed=0):
    scores = 2 * torch.randn(*shape, dtype=torch.float64, generator=torch.manual_seed(seed))
    return scores.softmax(-1)


def rolled_out(layers, query):
    return attention_rollout([Maps(attn) for attn in layers], query)


def one_hot(*places, tokens=TOKENS):
    return torch.nn.functional.one_hot(torch.tensor(places), tokens).double()


def test_the_row_is_that_of_the_query_in_every_bit_and_several_are_averaged():
    attn = maps(BATCH, HEADS, TOKENS, TOKENS).float()
    row = query_attention(Maps(attn), one_hot(0, 4))
    assert row.dtype == torch.float64
    assert torch.equal(row, torch.stack([attn[0, :, 0], attn[1, :, 4]]).double())
    weights = torch.zeros(BATCH, TOKENS)
    weights[:, 2:5] = 1 / 3
    torch.testing.assert_close(query_attention(Maps(attn), weights), attn[:, :, 2:5].double().mean(-2))


def test_rows_that_are_not_read_may_hold_anything():
    attn = maps(BATCH, HEADS, TOKENS, TOKENS)
    broken = attn.clone()
    broken[0, :, 1:] = math.nan
    broken[1, :, 0] = math.nan
    row = query_attention(Maps(broken), one_hot(0, 3))
    assert torch.equal(row, torch.stack([attn[0, :, 0], attn[1, :, 3]]))


def test_causal_is_what_sees_no_later_key():
    attn, real = maps(BATCH, HEADS, TOKENS, TOKENS), torch.ones(BATCH, TOKENS, dtype=torch.bool)
    assert not is_causal(attn, real)
    assert is_causal(attn.tril(), real)
    late = attn.tril()
    late[1, 2, 0, 6] = 1e-30
    assert not is_causal(late, real)
    real[1, :2] = False  # padding in front attends to whatever the kernel gives it
    assert is_causal(late, real)
    assert not is_causal(maps(BATCH, HEADS, 1, 1), real[:, :1])


def test_rollout_equals_a_loop_over_paths_of_one_token_at_a_time():
    layers = [maps(BATCH, HEADS, TOKENS, TOKENS, seed=seed) for seed in range(LAYERS)]
    for batch in range(BATCH):
        rolled = [[float(i == j) for j in range(TOKENS)] for i in range(TOKENS)]
        for attn in layers:
            stepped = [[0.0] * TOKENS for _ in range(TOKENS)]
            for i in range(TOKENS):
                for j in range(TOKENS):
                    for k in range(TOKENS):
                        mean = sum(float(attn[batch, head, i, k]) for head in range(HEADS)) / HEADS
                        stepped[i][j] += (mean + (i == k)) / 2 * rolled[k][j]
            rolled = stepped
        for place in range(TOKENS):
            found = rolled_out(layers, one_hot(*[place] * BATCH))
            torch.testing.assert_close(found[batch], torch.tensor(rolled[place], dtype=torch.float64))


def test_rollout_of_one_layer_is_half_itself_and_of_many_still_sums_to_one():
    layers = [maps(BATCH, HEADS, TOKENS, TOKENS, seed=seed) for seed in range(LAYERS)]
    cls = one_hot(0, 0)
    torch.testing.assert_close(rolled_out(layers[:1], cls), (layers[0].mean(1)[:, 0] + cls) / 2)
    torch.testing.assert_close(rolled_out(layers, cls).sum(-1), torch.ones(BATCH, dtype=torch.float64))
    order = rolled_out(layers[::-1], cls)
    assert not torch.allclose(order, rolled_out(layers, cls))


def test_a_token_that_attends_to_nothing_stays_where_it_is():
    attn = maps(1, HEADS, TOKENS, TOKENS)
    attn[:, :, 5] = 0  # padding
    torch.testing.assert_close(rolled_out([attn, attn], one_hot(5)), one_hot(5))


def test_rollout_through_other_tokens_is_refused():
    with pytest.raises(InputError, match=r"number 0 of shape \(2, 3, 5, 5\) does not fit 7 tokens"):
        rolled_out([maps(2, 3, 5, 5), maps(2, 3, 7, 7)], one_hot(0, 0))
    with pytest.raises(InputError, match="at least one layer"):
        rolled_out([], one_hot(0))


def test_concentration_equals_its_formulas_one_token_at_a_time():
    row = maps(BATCH, 2 + ROWS * COLUMNS)
    content = torch.ones(2 + ROWS * COLUMNS, dtype=torch.bool)
    content[:2] = False
    positions = torch.cat([torch.full((2, 2), math.nan), grid_positions((ROWS, COLUMNS))])
    found = concentration(row, content, positions)
    places = [(i // COLUMNS, i % COLUMNS) for i in range(ROWS * COLUMNS)]

    def spread(weights):
        centre = [sum(w * p[axis] for w, p in zip(weights, places, strict=True)) for axis in (0, 1)]
        return sum(
            w * ((p[0] - centre[0]) ** 2 + (p[1] - centre[1]) ** 2)
            for w, p in zip(weights, places, strict=True)
        )

    for batch in range(BATCH):
        kept = [float(value) for value in row[batch, 2:]]
        weights = [value / sum(kept) for value in kept]
        entropy = -sum(w * math.log(w) for w in weights) / math.log(len(weights))
        assert found.entropy_share[batch] == pytest.approx(entropy)
        even = [1 / len(weights)] * len(weights)
        assert found.spread[batch] == pytest.approx(math.sqrt(spread(weights) / spread(even)))


def test_even_attention_is_one_and_a_single_place_zero():
    count = ROWS * COLUMNS
    rows = torch.stack([torch.full((count,), 0.04), one_hot(3, tokens=count)[0]])
    found = concentration(rows, torch.ones(count, dtype=torch.bool), grid_positions((ROWS, COLUMNS)))
    torch.testing.assert_close(found.entropy_share, torch.tensor([1.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(found.spread, torch.tensor([1.0, 0.0], dtype=torch.float64))


def test_a_single_token_and_no_attention_have_no_concentration():
    row = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    content = torch.tensor([[False, True, False], [False, True, True]])
    found = concentration(row, content, torch.arange(3.0)[:, None])
    assert found.entropy_share.isnan().all()
    assert found.spread.isnan().all()
    assert concentration(row, torch.ones(3, dtype=torch.bool)).spread.isnan().all()
    with pytest.raises(InputError, match="content must be boolean over 3 keys"):
        concentration(row, torch.ones(4, dtype=torch.bool))


def test_diversity_is_the_divergence_of_two_heads_and_runs_from_alike_to_apart():
    rows = maps(BATCH, 2, TOKENS)
    content = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    content[:, 0] = False
    for batch, found in enumerate(head_diversity(rows, content)):
        kept = rows[batch, :, 1:] / rows[batch, :, 1:].sum(-1, keepdim=True)
        assert found == pytest.approx(jensenshannon(*kept.numpy(), base=2) ** 2)
    alike = rows[:, :1].expand(-1, HEADS, -1)
    torch.testing.assert_close(head_diversity(alike, content), torch.zeros(BATCH, dtype=torch.float64))
    apart = one_hot(1, 4, 6)[None]
    torch.testing.assert_close(head_diversity(apart, content[:1]), torch.ones(1, dtype=torch.float64))
    assert head_diversity(rows[:, :1], content).isnan().all()


def test_the_share_on_a_mask_is_its_part_of_the_attention_on_patches():
    rows = torch.tensor([[0.1, 0.2, 0.1, 0.0], [0.2, 0.2, 0.2, 0.2]])
    masks = torch.tensor([[False, True, True, False], [True, True, False, True]])
    torch.testing.assert_close(mask_share(rows, masks), torch.tensor([0.75, 0.75], dtype=torch.float64))
    whole = torch.tensor([[True] * 4, [False] * 4])
    assert mask_share(rows, whole).isnan().all()


def test_diversity_of_maps_is_the_mean_over_queries():
    attn = maps(BATCH, HEADS, TOKENS, TOKENS)
    real = torch.tensor([[True] * TOKENS, [True] * 4 + [False] * 3])
    found = Maps(attn, keys=real).reduced(Diversity())["diversity"].masked_fill(~real, math.nan).nanmean(-1)
    for place, count in enumerate((TOKENS, 4)):
        rows = attn[place, :, :count, :count]
        by_query = [
            head_diversity(rows[:, query], torch.ones(count, dtype=torch.bool)) for query in range(count)
        ]
        assert found[place].item() == pytest.approx(torch.stack(by_query).mean().item())
    same_heads = attn[:, :1].expand(-1, HEADS, -1, -1)
    alike = Maps(same_heads).reduced(Diversity())["diversity"]
    torch.testing.assert_close(alike, torch.zeros(BATCH, TOKENS, dtype=torch.float64))
    apart = torch.stack([one_hot(*[head] * TOKENS) for head in range(HEADS)])
    assert Maps(apart[None]).reduced(Diversity())["diversity"].mean().item() == pytest.approx(1)


def test_permuted_heads_keep_their_weights_on_the_keys_that_they_may_see():
    visible = torch.ones(HEADS, TOKENS, TOKENS, dtype=torch.bool).tril()
    visible[..., 1:, 0] = False

    def sources():
        return [torch.Generator().manual_seed(head) for head in range(HEADS)]

    attn = torch.where(visible, maps(HEADS, TOKENS, TOKENS), 0.0)
    moved = permuted_heads(attn, visible, sources())
    torch.testing.assert_close(moved.sort(-1).values, attn.sort(-1).values)
    assert (moved[~visible] == 0).all()
    assert not torch.equal(moved, attn)
    assert torch.equal(permuted_heads(attn[2:], visible[2:], sources()[2:]), moved[2:])
    equal = torch.ones(HEADS, TOKENS, TOKENS, dtype=torch.float64) / TOKENS
    assert torch.equal(permuted_heads(equal, visible, sources()), equal)


MODEL_HEADS, DIM, MODEL_LAYERS = 3, 5, 2
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
    """A ViT over 4 × 2 patches, with a class token and two registers by default, away from its start."""
    torch.manual_seed(0)
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=(16, 8), patch_size=4, in_chans=1, embed_dim=MODEL_HEADS * DIM, depth=MODEL_LAYERS,
        num_heads=MODEL_HEADS, num_classes=7, **{"reg_tokens": 2} | options,
    )  # fmt: skip
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.double().eval()


def images(n=4):
    return torch.randn(n, 1, 16, 8, dtype=torch.float64, generator=torch.manual_seed(1))


def per_token(model, inputs, layers=None, **options):
    """What the class token attends to, token by token."""
    return analyze("class-attention", model=model, inputs=inputs, layers=layers, per="token", **options)


def row_of(frame, **where):
    """The values of one row of attention, token by token."""
    chosen = frame[np.logical_and.reduce([frame[name] == value for name, value in where.items()])]
    return chosen.sort_values("key")["value"].to_numpy()


@pytest.mark.parametrize("name", WITH_CLASS_TOKEN)
def test_every_head_is_the_row_that_the_model_computes_itself(name):
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    own = [attn if attn is None else attn.detach() for attn in family.own_attention(model, batch)]
    prefix = special_kinds(model)
    frame = per_token(model, batch)
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
        frame = per_token(model, images(2), [1])
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
    frame = per_token(model, images())
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
    prefix = rows[(rows["metric"] == "class_attention_special") & (rows["candidate"] == "head")]
    expected = heads[heads["kind"] != "patch"].groupby(places)["value"].sum()
    np.testing.assert_allclose(prefix.sort_values(places)["value"], expected)
    diversity = rows[rows["metric"] == "class_attention_diversity"]
    assert len(diversity) == MODEL_LAYERS * 4
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
    frame = per_token(model, batch, rollout=True)
    frame = frame[frame["layer"] == 1]
    np.testing.assert_allclose(row_of(frame, input="1", candidate="rollout"), rolled[1, 0])
    rows = analyze("class-attention", model=model, inputs=batch, rollout=True, tokens=True, per_head=True)
    found = rows[
        (rows["metric"] == "class_attention") & (rows["candidate"] == "rollout") & (rows["layer"] == 1)
    ]
    np.testing.assert_allclose(found[found["input"] == "0"]["value"], rolled[0, 0])
    with pytest.raises(InputError, match="rollout to layer 1 needs all layers from the first"):
        analyze("class-attention", model=model, inputs=batch, rollout=True, layers=[1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("xcit", "layers attend 0-2 from channel to channel; 3 only from the class token"),
        ("tost", "layers attend 0-2 without a map from token to token; 3 only from the class token"),
        (
            "cait",
            "layers attend 0-2 with rows that are no distributions over tokens; 3 only from the class token",
        ),
    ],
)
def test_rollout_is_refused_where_layers_have_no_map_of_tokens(name, message):
    model, batch = FAMILIES[name].build(), FAMILIES[name].batch()
    for run in (
        lambda: analyze("class-attention", model=model, inputs=batch, rollout=True),
        lambda: per_token(model, batch, rollout=True),
    ):
        with pytest.raises(InputError, match=message):
            run()


def test_models_without_a_class_token_say_so_and_have_the_mean_query():
    pooled = narrow_vit(class_token=False, reg_tokens=0, global_pool="avg")
    message = "has no class token, and is not causal; choose one with query: mean"
    with pytest.raises(InputError, match=message):
        analyze("class-attention", model=pooled, inputs=images())
    with pytest.raises(InputError, match=f"class-attention: nothing to measure; layer 1 left out: {message}"):
        per_token(pooled, images(), [1])
    frame = per_token(pooled, images(2), [1], query="mean")
    attn = workbench.capture(pooled, images(2), layers=[1], sites=["attn"])[1].attn
    np.testing.assert_allclose(row_of(frame, input="1", candidate="head", head=0), attn[1, 0].mean(0))
    with pytest.raises(InputError, match="cuts the image into windows"):
        per_token(FAMILIES["swin"].build(), FAMILIES["swin"].batch(), query="mean")
    with pytest.raises(InputError, match="query must be 'auto', 'mean', 'first' or 'last'; got 'middle'"):
        per_token(pooled, images(), query="middle")


def test_a_causal_model_is_read_from_its_last_token_and_padding_is_left_out():
    model, batch = gpt2(), texts((9, 4))
    frame = per_token(model, batch)
    assert set(frame["query"]) == {"last"}
    captured = workbench.capture(model, batch, sites=["attn"])
    for number, length in (("0", 9), ("1", 4)):
        found = row_of(frame, input=number, layer=1, candidate="head", head=2)
        np.testing.assert_allclose(found, captured[1].attn[int(number), 2, length - 1, :length])
    rows = analyze("class-attention", model=model, inputs=batch)
    assert "4 of 4 rows (one per input and layer) are not a class token's but: last" in rows.attrs["notes"]
    assert "class_attention_special" not in set(rows["metric"])
    alone = analyze(
        "class-attention", model=model, inputs={k: v[1:, :4] for k, v in batch.items()}, per_head=True
    )
    padded = analyze("class-attention", model=model, inputs=batch, per_head=True)
    np.testing.assert_allclose(padded.loc[padded["input"] == "1", "value"], alone["value"], rtol=1e-4)


def test_padding_in_front_does_not_hide_that_a_model_is_causal():
    batch = {name: ids.flip(1) for name, ids in texts((9, 4)).items()}
    frame = per_token(gpt2(), batch, [0])
    assert set(frame["query"]) == {"last"}
    one = frame[(frame["input"] == "1") & (frame["candidate"] == "mean")]
    assert one["key"].tolist() == [5, 6, 7, 8]
    assert one["value"].sum() == pytest.approx(1)


def test_texts_of_ids_alone_have_no_class_token_unless_a_query_is_chosen():
    with pytest.raises(InputError, match="has no class token, and is not causal"):
        analyze("class-attention", model=bert(), inputs=texts())
    frame = per_token(bert(), texts(), query="first")
    captured = workbench.capture(bert(), texts(), sites=["attn"])
    np.testing.assert_allclose(
        row_of(frame, input="0", layer=0, candidate="mean"), captured[0].attn[0, :, 0].mean(0)
    )
    mean = per_token(bert(), texts(), query="mean")
    expected = captured[1].attn[1, 2, :4, :4].mean(0)
    np.testing.assert_allclose(
        row_of(mean, input="1", layer=1, candidate="head", head=2), expected, rtol=1e-6
    )


def test_a_tokenizer_names_the_class_token_and_the_words():
    model = workbench.load("all-MiniLM-L6-v2")
    given = workbench.inputs(PROSE, model, n=2, max_length=12)
    frame = per_token(model, given, [-1])
    first = frame[(frame["input"] == given.ids[0]) & (frame["candidate"] == "mean")]
    assert set(frame["query"]) == {"class"}
    assert first["label"].tolist() == given.tokens.labels[0]
    assert first["kind"].tolist() == ["class", *["word"] * 10, "special"]
    rows = analyze("class-attention", model=model, inputs=given, layers=[-1], per_head=True)
    prefix = rows[(rows["metric"] == "class_attention_special") & (rows["candidate"] == "mean")].iloc[0]
    assert prefix["value"] == pytest.approx(first["value"].iloc[[0, -1]].sum())


def test_foreground_is_ink_or_what_is_not_black(tmp_path):
    mask = np.zeros((16, 8), np.uint8)
    mask[:4, :4], mask[4:8, 4:7], mask[15] = 9, 4, 250
    Image.fromarray(mask).save(tmp_path / "a.png")
    image = np.zeros((16, 8, 3), np.uint8)
    image[4:8, 4:] = 255
    found = patch_foreground(str(tmp_path), "a.jpg", PATCHES, image)
    assert found.tolist() == [True, False, False, True, False, False, False, False]
    assert patch_foreground("ink", "a", PATCHES, image).tolist() == [False, False, False, True] + [False] * 4
    with pytest.raises(InputError, match=r"a\.png is 16 × 8; expected 8 × 8 pixels.* or 4 × 2"):
        patch_foreground(str(tmp_path), "a", PATCHES, image[:8])


def test_attention_on_a_mask_and_its_chance(tmp_path):
    model, batch = narrow_vit(), images(3)
    frame = per_token(model, batch)
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


def null_rows(rows, places, heads=(0, 1, 2), ids=("a", "b"), null="both"):
    layer = SimpleNamespace(seed=3, ids=[*ids], index=1, heads=[*heads])
    names = ("uniform", "permutation") if null == "both" else (null,)
    return _null_rows(layer, rows, places, "head", names, Options(null_samples=5))


def test_rows_of_the_nulls_lie_on_their_places_alone():
    rows, places = maps(BATCH, HEADS, TOKENS), torch.ones(BATCH, 1, TOKENS, dtype=torch.bool)
    places[0, 0, 0], places[1, 0, 4:] = False, False
    found = null_rows(rows, places)
    assert found["permutation"].shape == (BATCH, HEADS, 5, TOKENS)
    for number in range(BATCH):
        keys = [key for key in range(TOKENS) if places[number, 0, key]]
        expected = [1 / len(keys) if key in keys else 0 for key in range(TOKENS)]
        for head in range(HEADS):
            for row in found["uniform"][number, head].tolist():
                assert row == pytest.approx(expected)
            weights = sorted(rows[number, head, keys].tolist())
            orders = {tuple(row) for row in found["permutation"][number, head].tolist()}
            assert len(orders) > 1
            for row in orders:
                assert sorted(row[key] for key in keys) == weights
                assert all(row[key] == 0 for key in range(TOKENS) if key not in keys)


def test_permuted_rows_are_those_of_input_and_head_whatever_is_beside_them():
    rows, places = maps(BATCH, 1, TOKENS).repeat(1, HEADS, 1), torch.ones(BATCH, 1, TOKENS, dtype=torch.bool)
    whole = null_rows(rows, places)["permutation"]
    assert not torch.equal(whole[:, 0], whole[:, 1])  # each head has an order of its own
    part = null_rows(rows[1:, 2:], places[1:], heads=(2,), ids=("b",), null="permutation")["permutation"]
    assert torch.equal(part[0, 0], whole[1, 2])


def test_the_nulls_of_class_attention_are_uniform_attention_and_permuted_keys(tmp_path):
    mask = np.zeros(PATCHES, np.uint8)
    mask[0] = 255
    for number in range(3):
        Image.fromarray(mask).save(tmp_path / f"{number}.png")
    options = {"model": narrow_vit(), "inputs": images(3), "layers": [1], "masks": str(tmp_path)}
    tables = {
        null: analyze("class-attention", null=null, **options) for null in ("uniform", "permutation", "both")
    }
    patches = math.prod(PATCHES)
    expected = {"entropy_share": 1, "spread": 1, "diversity": 0, "mask": mask.astype(bool).mean()}
    for null, frame in tables.items():
        means = frame[
            frame["layer"].notna() & frame["input"].isna() & (frame["candidate"].fillna("head") != "mean")
        ]
        special = means[means["metric"] == "class_attention_special"]
        count = 11 - patches
        for _, row in means[means["null"] == "uniform"].iterrows():
            known = expected | {"special": count / 11}
            assert row["null_mean"] == pytest.approx(
                known[row["metric"].removeprefix("class_attention_")], abs=1e-12
            )
        drawn = means[means["null"] == "permutation"]
        assert set(drawn["metric"]) == (
            {f"class_attention_{name}" for name in ("spread", "special", "diversity", "mask")}
            if null != "uniform"
            else set()
        )
        assert (drawn["null_low"] < drawn["null_high"]).all()
        assert len(special) == (2 if null == "both" else 1)
        entropy = means[means["metric"] == "class_attention_entropy_share"]
        assert set(entropy["null"]) == {"uniform"}
    said = [workbench.findings(tables[null])[0] for null in tables]
    assert said[0] == said[1] == said[2]


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
    frame = per_token(model, given, [0], rollout=True)
    assert set(frame["query"]) == {"last"}
    sums = frame.groupby(["candidate", "head"], dropna=False)["value"].sum()
    np.testing.assert_allclose(sums, 1, rtol=1e-6)
    assert (frame.attrs["provenance"]["analysis"], frame.attrs["provenance"]["per"]) == (
        "class-attention",
        "token",
    )
    assert not frame.duplicated(["candidate", "head", "key"]).any()
    assert pd.isna(frame["row"]).all()
