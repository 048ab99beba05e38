"""Models with several kinds of tokens: exact, self attention beside cross attention, both axes labelled."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.captures.families import hf_model, images, words
from tests.captures.multimodal import (
    IMAGE,
    LLAMA,
    LOOKING,
    MODELS,
    TEXT,
    VISION,
    Model,
    among_words,
    qwen,
    qwen_pixels,
    text_to_text,
)  # fmt: skip
from workbench import analyze, capture, intervene
from workbench.captures import SITES, Capture, token_info
from workbench.captures.token_labels import vision_model
from workbench.core.errors import InputError

every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
BY_NAME = {model.name: model for model in MODELS}
CROSS = {"t5": [3, 5], "bart": [3], "whisper": [3], "siglip": [2]}


def own_maps(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights that attention modules return when the model runs eagerly, by path."""
    maps: dict[str, torch.Tensor] = {}
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")

    def keep(path: str):
        def hook(_, args, output) -> None:
            found = (
                [x for x in output if isinstance(x, torch.Tensor) and x.ndim == 4]
                if isinstance(output, tuple)
                else []
            )
            maps[path] = found[-1] if found else maps.get(path)

        return hook

    handles = [
        child.register_forward_hook(keep(path))
        for path, child in model.named_modules()
        if path.endswith(("self_attn", "encoder_attn", "SelfAttention", "EncDecAttention"))
    ]
    with torch.no_grad():
        model(**batch)
    for handle in handles:
        handle.remove()
    model.set_attn_implementation(before)
    return {path: found for path, found in maps.items() if found is not None}


def real(captured: Capture, layer: int) -> torch.Tensor:
    return captured.tokens_of(layer).mask


@every_model
def test_attention_is_what_the_model_computes_itself(model: Model):
    module, batch = model.build(), model.batch()
    captured = capture(module, batch, sites=("attn",))
    own = own_maps(module, batch)
    compared = [record for record in captured if record.path in own]
    assert len(compared) >= 2
    for record in compared:
        rows = real(captured, record.index)
        attn, expected = (x.transpose(1, 2)[rows] for x in (record.attn, own[record.path]))
        torch.testing.assert_close(attn, expected, rtol=1e-5, atol=2e-6)


@every_model
def test_the_output_is_unchanged_bit_for_bit(model: Model):
    module, batch = model.build(), model.batch()
    with torch.no_grad():
        before = module(**batch)
    result = capture(module, batch, sites=SITES[:8]).result
    name = "logits" if hasattr(before, "logits") else "logits_per_image"
    assert torch.equal(getattr(result, name), getattr(before, name))


@every_model
def test_self_and_cross_attention_are_told_apart(model: Model):
    captured = capture(model.build(), model.batch(), sites=("k",))
    assert [record.index for record in captured if record.source == "cross"] == CROSS.get(model.name, [])
    for record in captured:
        assert ("cross" in record.title) == (record.source == "cross")
        assert record.counts[1] == record.k.shape[2]


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_both_axes_of_cross_attention_are_labelled(name: str):
    batch = text_to_text()
    captured = capture(BY_NAME[name].build(), batch, sites=("attn",))
    encoder, decoder, cross = (captured.tokens_of(layer) for layer in (0, 2, 3))
    ids = [[str(i) for i in row] for row in batch["input_ids"].tolist()]
    written = [[str(i) for i in row] for row in batch["decoder_input_ids"].tolist()]
    assert encoder.labels == ids
    assert encoder.keys is None
    assert decoder.labels == written
    assert decoder.keys is None
    assert cross.labels == written
    assert cross.keys.labels == ids
    assert torch.equal(cross.keys.mask, batch["attention_mask"].bool())
    assert not (captured[3].attn * ~cross.keys.mask[:, None, None]).any()


def test_frames_of_a_sound_are_no_words():
    captured = capture(BY_NAME["whisper"].build(), BY_NAME["whisper"].batch(), sites=("attn",))
    cross = captured.tokens_of(3)
    assert {*captured.tokens_of(0).kinds[0]} == {*cross.keys.kinds[0]} == {"frame"}
    assert {*cross.kinds[0]} == {"word"}


def test_towers_have_their_own_tokens():
    captured = capture(BY_NAME["clip"].build(), BY_NAME["clip"].batch(), sites=("attn",))
    image, text = captured.tokens_of(0), captured.tokens_of(2)
    assert image.grid == (4, 4)
    assert image.labels[0][:2] == ["[CLS]", "0,0"]
    assert text.grid is None
    assert "patch" not in text.kinds[0]
    assert captured.tokens.streams.keys() == {"image"}


@pytest.mark.parametrize(
    ("name", "grid"), [("llava", (4, 4)), ("smolvlm", (2, 2)), ("qwen2-vl", (2, 3)), ("qwen2.5-vl", (2, 3))]
)
def test_images_among_words_are_labelled_patch_by_patch(name: str, grid: tuple[int, int]):
    batch = BY_NAME[name].batch()
    tokens = token_info(BY_NAME[name].build(), batch)
    assert tokens.image_grids == [[grid], [grid]]
    assert tokens.grid is None
    for row, ids in enumerate(batch["input_ids"].tolist()):
        spots = iter([f"{r},{c}" for r in range(grid[0]) for c in range(grid[1])])
        for label, kind, number in zip(tokens.labels[row], tokens.kinds[row], ids, strict=True):
            assert (kind == "patch") == (number == IMAGE)
            assert label == (next(spots) if number == IMAGE else str(number))


def with_changed_cell(batch: dict[str, torch.Tensor], row: int, column: int, grid: tuple[int, int]):
    """The batch with other pixels in one cell of the first input's image; packed by the processor of Qwen's models."""
    pixels = batch["pixel_values"].clone()
    if pixels.ndim > 2:
        tall, wide = (size // count for size, count in zip(pixels.shape[-2:], grid, strict=True))
        pixels[0, ..., row * tall : (row + 1) * tall, column * wide : (column + 1) * wide] += 3
        return batch | {"pixel_values": pixels}
    from transformers import Qwen2VLImageProcessor

    sizes = {"shortest_edge": 64, "longest_edge": 900}
    packer = Qwen2VLImageProcessor(patch_size=4, merge_size=2, temporal_patch_size=2, size=sizes)
    image = torch.zeros(3, 8 * grid[0], 8 * grid[1], dtype=torch.uint8)
    image[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 255
    mark = torch.as_tensor(packer(image.permute(1, 2, 0).numpy(), return_tensors="pt")["pixel_values"])
    pixels[: len(mark)] += 3 * (mark > 0)
    return batch | {"pixel_values": pixels}


@pytest.mark.parametrize("model", LOOKING, ids=lambda model: model.name)
def test_another_patch_changes_the_token_that_bears_its_place(model: Model):
    """Each cell of the image in turn, in a tower whose patches ignore each other: the token labelled with it moves."""
    module, batch = model.build(), model.batch()
    with torch.no_grad():
        for name, parameter in vision_model(module).named_parameters():
            if "attn" in name or "attention" in name:
                parameter.zero_()
    tokens = token_info(module, batch)
    ((rows, columns),) = tokens.image_grids[0]
    seen = capture(module, batch, sites=("k",))
    first = next(record.index for record in seen if seen.tokens_of(record.index).labels == tokens.labels)
    for row in range(rows):
        for column in range(columns):
            changed = with_changed_cell(batch, row, column, (rows, columns))
            moved = (capture(module, changed, sites=("k",))[first].k - seen[first].k)[0].norm(dim=-1).sum(0)
            assert tokens.labels[0][int(moved.argmax())] == f"{row},{column}"


def test_several_images_of_one_input_are_numbered():
    pixels = {"pixel_values": torch.randn(3, 3, 32, 32)}
    batch = among_words(32, pixels)
    batch["input_ids"][1, 18:34] = 7  # of the second input, one image
    tokens = token_info(BY_NAME["llava"].build(), batch)
    assert tokens.image_grids == [[(4, 4), (4, 4)], [(4, 4)]]
    assert [tokens.labels[0][place] for place in (2, 17, 18, 33)] == ["0:0,0", "0:3,3", "1:0,0", "1:3,3"]
    assert tokens.labels[1][17] == "3,3"


def test_images_that_do_not_fit_their_places_stay_unnumbered():
    batch = among_words(15, {"pixel_values": torch.randn(2, 3, 32, 32)})
    tokens = token_info(BY_NAME["llava"].build(), batch)
    assert tokens.image_grids == [[], []]
    assert tokens.labels[0][2:17] == ["image"] * 15
    assert tokens.kinds[0][2] == "patch"


def test_pooled_patches_carry_the_grid_of_their_squares():
    """Gemma 3 averages squares of patches; Idefics 2 gathers as many tokens by queries that stand nowhere."""
    text = {**TEXT, "num_key_value_heads": 1, "head_dim": 8}
    gemma = hf_model(
        "Gemma3ForConditionalGeneration", "Gemma3Config", vision_config=VISION, text_config=text,
        mm_tokens_per_image=4, image_token_id=IMAGE,
    )()  # fmt: skip
    batch = among_words(4, {"pixel_values": images()})
    tokens = token_info(gemma, batch)
    assert tokens.image_grids == [[(2, 2)], [(2, 2)]]
    assert tokens.labels[1][2:6] == ["0,0", "0,1", "1,0", "1,1"]
    idefics = hf_model(
        "Idefics2ForConditionalGeneration", "Idefics2Config", vision_config=VISION, text_config=LLAMA,
        perceiver_config={"resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 3,
                          "resampler_head_dim": 8, "num_key_value_heads": 1}, image_token_id=IMAGE,
    )()  # fmt: skip
    tokens = token_info(idefics, batch | {"pixel_values": images()[:, None]})
    assert tokens.image_grids == [[], []]
    assert tokens.labels[0][2:6] == ["image"] * 4


def test_images_of_which_nothing_is_known_are_no_words():
    """Mllama's images have axes of their own: their tokens are numbered, and the words are not lengthened to them."""
    vision = {
        "hidden_size": 24, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 3, "image_size": 32,
        "intermediate_size": 34, "patch_size": 8, "max_num_tiles": 1, "intermediate_layers_indices": [0],
        "vision_output_dim": 48, "supported_aspect_ratios": [[1, 1]],
    }  # fmt: skip
    text = {**TEXT, "num_key_value_heads": 1, "cross_attention_layers": [1], "rope_scaling": None}
    model = hf_model(
        "MllamaForConditionalGeneration", "MllamaConfig", vision_config=vision, text_config=text
    )()
    images = {
        "pixel_values": torch.randn(3, 1, 1, 3, 32, 32), "aspect_ratio_ids": torch.ones(3, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(3, 1, 1, dtype=torch.long),
        "cross_attention_mask": torch.ones(3, 11, 1, 1, dtype=torch.long),
    }  # fmt: skip
    captured = capture(model, words() | images, sites=("k",))
    assert captured.tokens.count == 11
    assert {*captured.tokens_of(0).kinds[0]} == {"token"}
    cross = captured.tokens_of(3)
    assert (captured[3].source, cross.count, cross.keys.count) == ("cross", 11, 17)
    assert cross.labels == captured.tokens.labels


@pytest.mark.parametrize("name", ["Qwen2VL", "Qwen2_5_VL"])
def test_packed_images_are_one_layer_whatever_their_sizes(name: str):
    """A batch of images is what each alone is, padded; without the padding its rows are distributions."""
    vision, small, large = qwen(name)().model.visual, (1, 4, 4), (1, 4, 6)
    pixels = qwen_pixels(small, large)
    both = capture(vision, {"hidden_states": pixels["pixel_values"], "grid_thw": pixels["image_grid_thw"]})
    assert [record.path for record in both] == ["blocks.0.attn", "blocks.1.attn"]
    parts = pixels["pixel_values"].split([16, 24])
    for number, (part, grid) in enumerate(zip(parts, (small, large), strict=True)):
        alone = capture(vision, {"hidden_states": part, "grid_thw": torch.tensor([grid])})
        for record, own in zip(both, alone, strict=True):
            if len(record.q) != 2:  # windows: those of the first image, then those of the second
                continue
            count = own.q.shape[2]
            assert torch.allclose(record.attn[number, :, :count, :count], own.attn[0], atol=1e-6)
            assert torch.allclose(record.head_out[number, :, :count], own.head_out[0], atol=1e-5)
            assert not record.attn[number, :, count:].any()
            assert not record.attn[number, :, :, count:].any()


def test_a_head_of_packed_images_is_replaced_image_by_image():
    """Zeros for the second image leave the first; a donor of two images gives each its own row without padding."""
    torch.manual_seed(0)
    vision, small, large = qwen("Qwen2VL")().model.visual, (1, 4, 4), (1, 4, 6)
    pixels = qwen_pixels(small, large)
    batch = {"hidden_states": pixels["pixel_values"], "grid_thw": pixels["image_grid_thw"]}

    def output(**changes):
        with torch.no_grad(), intervene(vision, **changes):
            return vision(**batch)[0]

    with torch.no_grad():
        plain = vision(**batch)[0]
    other = batch | {"hidden_states": batch["hidden_states"].flip(1)}
    donor = capture(vision, other)
    whole = output(changes={(0, 1): donor})
    head = donor[0].head_out[:, 1]
    alone = [output(changes={(0, 1): head}, inputs=[number]) for number in range(2)]
    rows = range(16), range(16, 40)
    for number, own in enumerate(rows):
        assert torch.equal(alone[number][list(own)], whole[list(own)])
        assert torch.equal(alone[number][list(rows[1 - number])], plain[list(rows[1 - number])])
        assert not torch.allclose(whole[list(own)], plain[list(own)], atol=1e-5)

    def by_hand(_, args):
        x = args[0].clone()
        width = x.shape[-1] // vision.blocks[0].attn.num_heads
        x[16:, width : 2 * width] = 0
        return (x,)

    handle = vision.blocks[0].attn.proj.register_forward_pre_hook(by_hand)
    with torch.no_grad():
        expected = vision(**batch)[0]
    handle.remove()
    assert torch.equal(output(changes={(0, 1): "zero"}, inputs=[1]), expected)
    assert torch.allclose(output(changes={(1, 0): torch.clone}, site="attn"), plain, atol=1e-5)


def test_patches_of_packed_images_stand_in_squares():
    captured = capture(BY_NAME["qwen2-vl"].build(), BY_NAME["qwen2-vl"].batch(), sites=("q",))
    image = captured.tokens_of(0)
    assert image.labels[0][:6] == ["0,0", "0,1", "1,0", "1,1", "0,2", "0,3"]
    assert image.image_grids == [[(4, 6)], [(4, 6)]]


def test_files_keep_sources_and_streams(tmp_path):
    for name in ("t5", "llava"):
        captured = capture(BY_NAME[name].build(), BY_NAME[name].batch(), sites=("q", "k"))
        again = Capture.load(captured.save(tmp_path / f"{name}.safetensors"))
        assert again.tokens.image_grids == captured.tokens.image_grids
        for record in captured:
            assert (again[record.index].source, again[record.index].counts) == (record.source, record.counts)
            tokens, own = again.tokens_of(record.index), captured.tokens_of(record.index)
            assert (tokens.labels, tokens.kinds, tokens.grid) == (own.labels, own.kinds, own.grid)
            assert torch.equal(tokens.mask, own.mask)
            assert (tokens.keys is None) == (own.keys is None)


def test_the_entropy_of_cross_attention_is_over_the_real_keys():
    module, batch = BY_NAME["t5"].build(), text_to_text()
    batch["decoder_attention_mask"] = torch.ones(3, 7, dtype=torch.long)
    batch["decoder_attention_mask"][2, 5:] = 0
    frame = analyze("attention-map", model=module, inputs=batch, null_samples=0)
    record = capture(module, batch, layers=[3], sites=("attn",))[3]
    rows = frame[(frame["layer"] == 3) & (frame["metric"] == "attention_entropy")]
    for row in rows.itertuples():
        number = int(row.input)
        keys, queries = (
            int(batch["attention_mask"][number].sum()),
            int(batch["decoder_attention_mask"][number].sum()),
        )
        weights = record.attn[number, row.head, :queries, :keys].double()
        expected = sum(-w * math.log(w) for line in weights.tolist() for w in line if w) / queries
        assert row.value == pytest.approx(expected, rel=1e-5)
    sources = frame.drop_duplicates("layer").set_index("layer")["source"]
    assert sources.to_dict() == {0: "self", 1: "self", 2: "self", 3: "cross", 4: "self", 5: "cross"}
    assert "attention_distance" not in set(frame[frame["source"] == "cross"]["metric"])


def test_the_column_source_is_empty_without_cross_attention():
    frame = analyze(
        "attention-map", model=BY_NAME["llava"].build(), inputs=BY_NAME["llava"].batch(), null_samples=0
    )
    assert frame["source"].isna().all()


def test_pairs_of_cross_attention_name_both_tokens():
    module, batch = BY_NAME["bart"].build(), text_to_text()
    rows = analyze("attention-map", model=module, inputs=batch, layers=[3], heads=[1], per="pair", query=6)
    attn = capture(module, batch, layers=[3], sites=("attn",))[3].attn
    assert set(rows["query_label"]) == {str(i) for i in batch["decoder_input_ids"][:, 6].tolist()}
    assert len(rows) == int(batch["attention_mask"].sum())
    assert rows["value"].iloc[4] == pytest.approx(float(attn[0, 1, 6, 4]))
    with pytest.raises(InputError, match="its tokens are 0 to 6"):
        analyze("attention-map", model=module, inputs=batch, layers=[3], per="pair", query=7)


def test_what_compares_tokens_of_one_kind_leaves_cross_attention_out():
    module, batch = BY_NAME["t5"].build(), text_to_text()
    frame = analyze("token-similarity", model=module, inputs=batch)
    assert set(frame["layer"].dropna()) == {0, 1, 2, 4}
    assert any(
        "layers 3, 5 left out: attends from its tokens to others" in note for note in frame.attrs["notes"]
    )
    keys = analyze("gram-spectrum", model=module, inputs=batch, layers=[3], max_rank=3)
    assert set(keys["layer"].dropna()) == {3}


def test_windows_that_are_no_inputs_are_left_out_with_the_reason():
    model = BY_NAME["qwen2.5-vl"]
    captured = capture(model.build(), model.batch(), sites=("mask", "attn", "head_out", "q"))
    frame = analyze("attention-map", qkv=captured, layers=[1, 2], null_samples=0)
    assert set(frame["layer"].dropna()) == {1, 2}
    frame = analyze("attention-map", qkv=captured, layers=[1, 0], null_samples=0)
    assert any("layer 0 left out: holds" in note for note in frame.attrs["notes"])
