"""Inputs: which are chosen, what the model receives, what its tokens are called, and what is refused."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.folders import SENTENCES, bert_folder, gpt2_folder, vit_folder
from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.data import batches
from workbench.data import pools as samples
from workbench.data.batches import IMAGENET_MEAN, IMAGENET_STD
from workbench.data.pools import DIGITS_MEAN, DIGITS_SIZE, DIGITS_STD, digits_split
from workbench.models.checkpoints import write_checkpoint
from workbench.models.loading import load

# The batch of images is a tensor, that of texts a dict; each test knows which it asked for.
inputs: Any = batches.inputs
PHOTO_COUNT = len(samples.photo_files())


@pytest.fixture(scope="module")
def vit():
    return load("vit_tiny_patch16_224", pretrained=False)


@pytest.fixture(scope="module")
def distilled():
    return load("deit_tiny_distilled_patch16_224", pretrained=False)


@pytest.fixture(scope="module")
def digits_model(tmp_path_factory):
    from workbench.models.architectures import build

    path = tmp_path_factory.mktemp("digits") / "epoch-001.safetensors"
    architecture = {"name": "vit", "depth": 2, "embed_dim": 12, "num_heads": 3}
    preprocessing = {"resize": DIGITS_SIZE, "mean": [DIGITS_MEAN], "std": [DIGITS_STD]}
    write_checkpoint(
        path, build(architecture), {"architecture": architecture, "preprocessing": preprocessing}
    )
    return load(f"file:{path}")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return load(f"hf:{bert_folder(tmp_path_factory.mktemp('bert'))}")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return load(f"hf:{gpt2_folder(tmp_path_factory.mktemp('gpt2'))}")


@pytest.fixture
def photos_folder(tmp_path):
    """Seven images of different sizes, modes and formats."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "images"
    folder.mkdir()
    kinds = [
        ("RGB", "png"),
        ("L", "png"),
        ("RGBA", "png"),
        ("P", "gif"),
        ("CMYK", "jpg"),
        ("LA", "png"),
        ("RGB", "JPEG"),
    ]
    for number, (mode, suffix) in enumerate(kinds):
        pixels = rng.integers(0, 256, (31 + number, 43 - number, 3), dtype=np.uint8)
        Image.fromarray(pixels).convert(mode).save(folder / f"{number}-{mode}.{suffix}")
    return folder


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(
        "\n".join(["= A heading that is longer than thirty characters =", *SENTENCES, "", "too short"])
    )
    return file


# Choosing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["bundled:digits", "bundled:digits-train", "bundled:photos"])
def test_same_seed_same_inputs_and_fewer_are_the_first_of_more(vit, spec):
    nine, four, other = inputs(spec, vit, n=9), inputs(spec, vit, n=4), inputs(spec, vit, n=9, seed=1)
    assert nine.ids[:4] == four.ids
    assert nine[:4].sha256 == four.sha256
    assert nine.ids != other.ids
    assert len(set(nine.ids)) == len(nine) == nine.n == 9
    torch.testing.assert_close(nine.batch[:4], four.batch, rtol=0, atol=0)


def test_hash_is_of_the_contents_whatever_the_model(vit, digits_model):
    wide, narrow = inputs("bundled:photos", vit, n=3), inputs("bundled:photos", digits_model, n=3)
    assert (
        wide.sha256 == narrow.sha256 == inputs("bundled:photos", vit, n=3, preprocessing="saritas2025").sha256
    )
    assert wide.sha256 != inputs("bundled:photos", vit, n=4).sha256
    assert wide.identity["sha256"] == wide.sha256


def test_hash_changes_with_one_pixel(vit, photos_folder):
    before = inputs(f"images:{photos_folder}", vit).sha256
    pixels = np.asarray(Image.open(photos_folder / "0-RGB.png")).copy()
    pixels[3, 5, 1] ^= 1
    Image.fromarray(pixels).save(photos_folder / "0-RGB.png")
    assert inputs(f"images:{photos_folder}", vit).sha256 != before


def test_n_is_25_or_all_there_are_unless_asked(vit, photos_folder):
    assert len(inputs("bundled:digits", vit)) == 25
    assert len(inputs(f"images:{photos_folder}", vit)) == 7
    with pytest.raises(InputError, match=r"n=8: the number of inputs in .* is 7; "):
        inputs(f"images:{photos_folder}", vit, n=8)


@pytest.mark.parametrize("wrong", [{"n": 0}, {"n": -3}, {"n": 2.5}, {"n": True}, {"seed": -1}, {"seed": "x"}])
def test_numbers_that_are_none(vit, wrong):
    with pytest.raises(InputError, match="whole number"):
        inputs("bundled:digits", vit, **wrong)


def test_slices_and_batches_keep_everything_together(digits_model):
    whole = inputs("bundled:digits", digits_model, n=7)
    parts = list(whole.batches(3))
    assert [len(part) for part in parts] == [3, 3, 1]
    assert [name for part in parts for name in part.ids] == whole.ids
    assert [target for part in parts for target in part.targets or []] == whole.targets
    torch.testing.assert_close(torch.cat([part.batch for part in parts]), whole.batch, rtol=0, atol=0)
    assert parts[2].tokens.mask.shape == (1, 65)
    assert parts[1].sha256 == whole[3:6].sha256
    with pytest.raises(InputError, match="batch size 0"):
        next(whole.batches(0))
    with pytest.raises(InputError, match="slices"):
        whole[2]


# Images -----------------------------------------------------------------------------------------------------


def test_the_photographs_come_with_the_installed_packages():
    assert PHOTO_COUNT >= 15
    for name, file in samples.photo_files().items():
        assert "site-packages" in file.parts or "dist-packages" in file.parts, name
        pixels = samples.read_image(file)
        assert pixels.dtype == np.uint8
        assert min(pixels.shape[:2]) >= 200


def test_all_photographs_fit_a_colour_model_and_a_grey_one(vit, digits_model):
    for model, shape in ((vit, (3, 224, 224)), (digits_model, (1, 16, 16))):
        made = inputs("bundled:photos", model, n=PHOTO_COUNT)
        assert made.batch.shape == (PHOTO_COUNT, *shape)
        assert not made.skipped
        with torch.no_grad():
            assert torch.isfinite(model.module(made.batch)).all()
    with pytest.raises(InputError, match=f"is {PHOTO_COUNT}; give n of at most {PHOTO_COUNT}"):
        inputs("bundled:photos", vit, n=PHOTO_COUNT + 1)


def test_the_preprocessing_of_saritas2025_is_resize_then_imagenet_statistics(vit):
    made = inputs("bundled:photos", vit, n=5, preprocessing="saritas2025")
    for number, name in enumerate(made.ids):
        file = samples.photo_files()[name.removeprefix("photos/")]
        photo = Image.open(file).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
        expected = (np.asarray(photo) / 255 - IMAGENET_MEAN) / IMAGENET_STD
        np.testing.assert_allclose(made.batch[number].permute(1, 2, 0), expected, atol=1e-6)
        np.testing.assert_array_equal(made.images[number], np.asarray(photo))


def test_models_own_preprocessing_is_timms(vit):
    from timm.data import create_transform, resolve_model_data_config

    made = inputs("bundled:photos", vit, n=2)
    assert made.identity["preprocessing"] == "model"
    transform = create_transform(**resolve_model_data_config(vit.module))
    for number, name in enumerate(made.ids):
        photo = Image.open(samples.photo_files()[name.removeprefix("photos/")]).convert("RGB")
        torch.testing.assert_close(made.batch[number], transform(photo), rtol=0, atol=0)
    # What people see is the crop the model sees.
    shown = torch.from_numpy(made.images[0]).permute(2, 0, 1) / 255
    torch.testing.assert_close(
        (shown - 0.5) / 0.5, made.batch[0].clamp(-1, 1), rtol=0, atol=0.5 / 255 / 0.5 + 1e-6
    )


def test_models_own_preprocessing_is_that_of_its_hugging_face_processor(tmp_path):
    from transformers import AutoImageProcessor

    model = load(f"hf:{vit_folder(tmp_path)}")
    own, paper = (
        inputs("bundled:photos", model, n=3, preprocessing=name) for name in ("model", "saritas2025")
    )
    photo = Image.open(samples.photo_files()[own.ids[0].removeprefix("photos/")]).convert("RGB")
    expected = AutoImageProcessor.from_pretrained(tmp_path)(images=photo, return_tensors="pt")[
        "pixel_values"
    ][0]
    torch.testing.assert_close(own.batch["pixel_values"][0], expected, rtol=0, atol=0)
    scale = torch.tensor(IMAGENET_STD) / 0.2
    plain = (
        paper.batch["pixel_values"] * scale.view(3, 1, 1)
        + (torch.tensor(IMAGENET_MEAN) - 0.4).view(3, 1, 1) / 0.2
    )
    torch.testing.assert_close(plain, own.batch["pixel_values"], rtol=0, atol=0.03)
    with torch.no_grad():
        model.module(**own.batch)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match="states no preprocessing"):
        inputs("bundled:photos", load(f"hf:{tmp_path}"), n=1)


@pytest.mark.parametrize("preprocessing", ["saritas2025", "model"])
def test_digits_reach_their_model_as_in_training(digits_model, preprocessing):
    made = inputs("bundled:digits", digits_model, n=11, preprocessing=preprocessing)
    test = digits_split("test")
    for number, name in enumerate(made.ids):
        place = test.ids.index(name)
        torch.testing.assert_close(made.batch[number], test.images[place], rtol=0, atol=1e-6)
        assert made.targets[number] == test.labels[place]
        # Ink is light and paper dark, as in the data; grey means three equal channels.
        assert made.images[number].shape == (16, 16, 3)
        assert (made.images[number] == made.images[number][..., :1]).all()


def test_the_bundled_model_is_as_good_as_its_record_says():
    import json

    from workbench.core import paths

    about = json.loads(
        (paths.data_dir() / "models" / "digits-vit" / "model.json").read_text(encoding="utf-8")
    )
    for record in about["checkpoints"]:
        model = load(f"bundled:digits-vit@{record['name']}")
        made = inputs("bundled:digits", model, n=about["data"]["test"]["n"])
        with torch.no_grad():
            right = (model.module(made.batch).argmax(1) == torch.tensor(made.targets)).double().mean().item()
        # One image on the edge between two classes may fall either way on another processor.
        assert abs(right - record["test_accuracy"]) < 1.5 / len(made), record["name"]
    assert model.checkpoint == load("digits-vit").checkpoint == record["name"]


@pytest.mark.parametrize("preprocessing", ["saritas2025", "model"])
def test_digits_on_a_colour_model_have_three_equal_channels_before_normalisation(vit, preprocessing):
    made = inputs("bundled:digits", vit, n=2, preprocessing=preprocessing)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in made.normalization)
    plain = made.batch * std + mean
    assert plain.shape == (2, 3, 224, 224)
    torch.testing.assert_close(plain[:, 0], plain[:, 2], rtol=0, atol=1e-6)
    assert plain.min() >= -1e-6
    assert plain.max() <= 1 + 1e-6


def test_patch_tokens_follow_the_prefix_of_each_model(vit, distilled):
    for model, prefix in ((vit, ["class"]), (distilled, ["class", "distillation"])):
        tokens = inputs("bundled:photos", model, n=2).tokens
        assert tokens.grid == (14, 14)
        assert tokens.kinds[1] == prefix + ["patch"] * 196
        assert tokens.labels[0][len(prefix) + 15] == "1,1"
        assert tokens.mask.shape == (2, 196 + len(prefix))
        assert tokens.mask.all()


def test_images_of_every_mode_and_suffix(vit, photos_folder):
    made = inputs(f"images:{photos_folder}", vit)
    assert sorted(made.ids) == sorted(file.name for file in photos_folder.iterdir())
    grey = made.images[made.ids.index("1-L.png")]
    assert (grey[..., 0] == grey[..., 2]).all()
    assert made.targets is None


def test_sixteen_bit_images_are_scaled_not_clipped(tmp_path):
    ramp = np.linspace(0, 65535, 20 * 30).reshape(20, 30).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    np.testing.assert_array_equal(samples.read_image(tmp_path / "ramp.png"), ramp >> 8)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_parts_are_white(tmp_path, mode):
    image = Image.new("RGBA", (3, 2), (10, 10, 10, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    image.convert(mode).save(tmp_path / "clear.png")
    pixels = samples.read_image(tmp_path / "clear.png").reshape(2, 3, -1)
    assert (pixels[0, 1] == 255).all()
    assert (pixels[1] == 10).all()


def test_images_are_turned_upright(tmp_path):
    pixels = np.zeros((20, 30, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side
    Image.fromarray(pixels).save(tmp_path / "side.jpg", exif=exif)
    assert samples.read_image(tmp_path / "side.jpg").shape == (30, 20, 3)


def test_unreadable_images_are_named_skipped_and_counted(vit, photos_folder):
    whole = (photos_folder / "0-RGB.png").read_bytes()
    (photos_folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    (photos_folder / "words.jpg").write_text("not a picture")
    (photos_folder / "empty.png").write_bytes(b"")
    (photos_folder / "notes.txt").write_text("not looked at")
    with pytest.warns(UserWarning, match="unreadable images skipped: 3"):
        made = inputs(f"images:{photos_folder}", vit)
    assert sorted(name for name, _ in made.skipped) == ["cut.png", "empty.png", "words.jpg"]
    assert all(reason for _, reason in made.skipped)
    assert made.n == len(made) == 7
    assert "cut.png" in made.notes[0]


def test_only_unreadable_images_is_an_error(vit, tmp_path):
    (tmp_path / "words.jpg").write_text("not a picture")
    with pytest.raises(InputError, match=r"none of the 1 images .*words\.jpg"):
        inputs(f"images:{tmp_path}", vit)


def test_empty_and_missing_folders(vit, tmp_path):
    with pytest.raises(InputError, match=r"no images in .*\.png.*are read"):
        inputs(f"images:{tmp_path}", vit)
    with pytest.raises(InputError, match="there is no folder"):
        inputs(f"images:{tmp_path / 'nothing'}", vit)
    with pytest.raises(InputError, match="expected FOLDER/CLASS/IMAGE"):
        inputs(f"imagenet:{tmp_path}", vit)


def test_class_folders_give_targets_in_order_of_name(vit, photos_folder, tmp_path):
    for number, file in enumerate(sorted(photos_folder.iterdir())):
        place = tmp_path / "set" / "val" / f"n{number % 3:02d}"
        place.mkdir(parents=True, exist_ok=True)
        file.rename(place / file.name)
    for spec in (f"imagenet:{tmp_path / 'set'}", f"imagenet:{tmp_path / 'set' / 'val'}"):
        made = inputs(spec, vit, n=5)
        assert made.targets == [int(name[1:3]) for name in made.ids]
    with pytest.raises(InputError, match=r"imagenet:.* reads a folder of class folders"):
        inputs(f"images:{tmp_path / 'set' / 'val'}", vit)


def test_batches_take_the_models_type(distilled):
    half = load("deit_tiny_distilled_patch16_224", pretrained=False, dtype="bfloat16")
    assert inputs("bundled:photos", half, n=1).batch.dtype == torch.bfloat16
    assert inputs("bundled:photos", distilled, n=1).batch.dtype == torch.float32


# Texts ------------------------------------------------------------------------------------------------------


def test_texts_are_the_lines_that_are_not_blank(bert, text):
    made = inputs(f"text:{text}", bert, order="file")
    assert made.texts == ["= A heading that is longer than thirty characters =", *SENTENCES, "too short"]
    assert [int(name.rpartition(":")[2]) for name in made.ids] == [1, 2, 3, 4, 5, 7]


def test_lines_are_those_that_grep_counts(bert, tmp_path):
    (tmp_path / "lines.txt").write_bytes("one\ftwo\r\n\n你好\u2028three\x85four\n".encode())
    made = inputs(f"text:{tmp_path / 'lines.txt'}", bert, order="file")
    assert made.ids == ["lines.txt:1", "lines.txt:3"]
    assert made.texts == ["one\ftwo", "你好\u2028three\x85four"]


@pytest.mark.parametrize("order", ["file", "random"])
def test_an_order_is_that_of_the_file_or_drawn(vit, order):
    made = inputs("bundled:digits", vit, n=9, order=order)
    every = digits_split("test").ids
    assert (made.ids == every[:9]) == (order == "file")
    assert made.identity.get("order", "random") == order
    assert ("in their order" in repr(made)) == (order == "file")
    with pytest.raises(UnknownName, match="order 'files'"):
        inputs("bundled:digits", vit, order="files")


def test_a_list_of_texts_is_taken_in_its_order(bert):
    made = inputs([*SENTENCES, "mat."] * 7, bert)
    assert made.texts == [*SENTENCES, "mat."] * 7
    assert made.ids == [f"text:{number}" for number in range(1, len(made) + 1)]
    again = inputs(made.spec, bert)
    assert again.sha256 == made.sha256
    assert again.order == "file"
    assert inputs(made.spec, bert, n=2).texts == list(SENTENCES[:2])
    assert inputs(made.spec, bert, n=2, order="random").texts != list(SENTENCES[:2])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([], "list of inputs is empty"),
        (["a", " "], "text 2 of 2 is empty"),
        (["a\ud800"], "not valid Unicode"),
        (["a", np.zeros((2, 2))], "a list of texts holds strings; got one ndarray"),
        ("text:[1]", "written as in JSON"),
        ('text:["a', "written as in JSON"),
        ("text:[]", "lists no inputs"),
    ],
)
def test_lists_of_texts_that_are_refused(bert, wrong, words):
    with pytest.raises(InputError, match=words):
        inputs(wrong, bert)


def test_images_are_given_as_paths_arrays_and_pillow(vit, photos_folder):
    file = photos_folder / "0-RGB.png"
    with Image.open(file) as opened:
        pixels = np.asarray(opened)
        made = inputs([file, pixels, opened, pixels / 255, str(file)], vit, preprocessing="saritas2025")
    assert made.ids == [str(file), "image:2", "image:3", "image:4", str(file)]
    for number in (1, 2, 4):
        torch.testing.assert_close(made.batch[number], made.batch[0], rtol=0, atol=0)
    torch.testing.assert_close(made.batch[3], made.batch[0], rtol=0, atol=0.03)
    by_spec = inputs([file, photos_folder / "1-L.png"], vit)
    assert by_spec.ids == ["0-RGB.png", "1-L.png"]
    assert inputs(by_spec.spec, vit).sha256 == by_spec.sha256


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((2, 3, 4, 5)), r"shape \(2, 3, 4, 5\)"),
        (np.full((4, 4), 7.0), "floats from 0 to 1"),
        (np.full((4, 4), 300), "int64 from 300 to 300"),
        (Image.new("F", (3, 3)), "range is not known"),
        (torch.zeros(3, 4, 4), "is a Tensor; an image is a path"),
        (np.zeros((3, 5, 6)), r"shape \(3, 5, 6\).*transpose\(1, 2, 0\) puts the channels last"),
    ],
)
def test_images_that_are_refused(vit, image, words):
    with pytest.raises(InputError, match=words):
        inputs([np.zeros((4, 4), np.uint8), image], vit)


def test_a_capture_takes_a_list_and_a_spec(bert):
    from workbench import analyze, capture

    captured = capture(bert, ["a prompt", "another"])
    assert captured.tokens.labels[0][0] == "[CLS]"
    assert len(captured.tokens) == 2
    assert capture(bert, 'text:["a prompt"]')[0].q.shape[0] == 1
    frame = analyze("attention-map", bert, ["a prompt", "another"], per_input=True)
    assert {*frame["input"].dropna()} == {"text:1", "text:2"}
    with pytest.raises(InputError, match="not for a BertModel"):
        capture(bert.module, ["a prompt"])


def test_a_typed_special_token_is_special(bert):
    made = inputs(["a clock [SEP] strikes [CLS] [MASK] zzz"], bert)
    kinds = dict(zip(zip(made.tokens.labels[0], range(99), strict=False), made.tokens.kinds[0], strict=True))
    assert [kind for (label, _), kind in kinds.items() if label == "[SEP]"] == ["special", "special"]
    assert [kind for (label, _), kind in kinds.items() if label == "[CLS]"] == ["class", "special"]
    assert {kind for (label, _), kind in kinds.items() if label in ("[MASK]", "[UNK]")} == {"word"}


def test_word_tokens_are_labelled_and_padding_is_marked(bert, text):
    made = inputs(f"text:{text}", bert)
    lengths = made.tokens.mask.sum(1)
    assert lengths.max() == made.batch["input_ids"].shape[1] > lengths.min()
    for labels, kinds, length, line in zip(
        made.tokens.labels, made.tokens.kinds, lengths, made.texts, strict=True
    ):
        assert kinds == ["class", *["word"] * (length - 2), "special", *["padding"] * (len(kinds) - length)]
        assert (labels[0], labels[length - 1]) == ("[CLS]", "[SEP]")
        if "[UNK]" not in labels:  # a heading's signs are not in this vocabulary
            assert "".join(label.removeprefix("##") for label in labels[1 : length - 1]) == line.replace(
                " ", ""
            )
    assert sum("[UNK]" not in labels for labels in made.tokens.labels) > 1


def test_byte_level_pieces_read_as_text(gpt2, text):
    made = inputs(f"text:{text}", gpt2)
    for labels, kinds, line in zip(made.tokens.labels, made.tokens.kinds, made.texts, strict=True):
        shown = "".join(label for label, kind in zip(labels, kinds, strict=True) if kind == "word")
        assert line.startswith(shown)
        assert len(shown) > 30 or shown == line
    # Padding is the end-of-text token, and masked.
    padded = made.batch["attention_mask"] == 0
    assert (made.batch["input_ids"][padded] == gpt2.tokenizer.eos_token_id).all()


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_padding_changes_no_real_token(name, text, request):
    model = request.getfixturevalue(name)
    made = inputs(f"text:{text}", model)
    with torch.no_grad():
        together = model.module(**made.batch, output_hidden_states=True).hidden_states
        for number, part in enumerate(made.batches(1)):
            real = part.tokens.mask[0]
            alone = {key: value[:, real] for key, value in part.batch.items()}
            for whole, single in zip(
                together, model.module(**alone, output_hidden_states=True).hidden_states, strict=True
            ):
                torch.testing.assert_close(whole[number, real], single[0], rtol=0, atol=1e-5)


def test_texts_are_cut_and_counted(bert, text):
    made = inputs(f"text:{text}", bert, max_length=9)
    assert made.batch["input_ids"].shape == (6, 9)
    count = sum(length > 9 for length in made.lengths)
    assert count >= 4
    assert made.notes == [f"{count} of 6 texts were longer than 9 tokens and were cut"]
    assert all(kinds[-1] in ("special", "padding") for kinds in made.tokens.kinds)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_windows_of_a_text_are_its_consecutive_tokens(name, request):
    model = request.getfixturevalue(name)
    texts, length = ["a clock strikes " * 9, "a clock strikes"], 11
    special = model.tokenizer.num_special_tokens_to_add()
    tokens = model.tokenizer(texts[0], add_special_tokens=False)["input_ids"]
    count = -(-len(tokens) // (length - special))
    assert count > 2
    for window in range(count):
        made = inputs(texts, model, max_length=length, window=window)
        assert made.windows == [window, 0]
        assert made[1:].tokens.labels[0][: made.lengths[1]] == inputs(texts[1:], model).tokens.labels[0]
        words = [kind == "word" for kind in made.tokens.kinds[0]]
        start = window * (length - special)
        assert made.batch["input_ids"][0][words].tolist() == tokens[start : start + length - special]
        assert made[:1].identity.get("window", 0) == window
        assert "window" not in made[1:].identity
    with pytest.raises(
        InputError, match=f"window {count} was asked for; the longest text has {count} of 11 tok"
    ):
        inputs(texts, model, max_length=length, window=count)


def test_an_image_beside_a_text_is_shown_as_the_model_sees_it_unless_it_is_cut():
    processor = SimpleNamespace(image_mean=[0.25, 0.5, 0.75], image_std=[0.5, 0.25, 0.5])
    pictures = [Image.new("RGB", (7, 5), color) for color in ("red", "lime")]
    seen = torch.rand(2, 3, 4, 6, generator=torch.Generator().manual_seed(1))
    normalised = (seen - torch.tensor([0.25, 0.5, 0.75])[:, None, None]) / torch.tensor([0.5, 0.25, 0.5])[
        :, None, None
    ]
    shown = batches._seen(normalised, pictures, processor)
    for image, wanted in zip(shown, seen, strict=True):
        np.testing.assert_allclose(image, 255 * wanted.permute(1, 2, 0), atol=0.51)
    for cut in (torch.zeros(5, 3, 4, 6), torch.zeros(2, 4, 3, 4, 6), torch.zeros(2, 588, 1, 1)):
        shown = batches._seen(cut, pictures, processor)
        assert [image.tolist() for image in shown] == [np.asarray(picture).tolist() for picture in pictures]


def test_an_image_has_no_windows():
    with pytest.raises(InputError, match="only a model of texts takes windows"):
        inputs("bundled:digits", load("bundled:digits-vit"), n=1, window=1)


def test_a_part_of_texts_says_which_of_its_own_were_cut(bert, tmp_path):
    path = tmp_path / "two.txt"
    path.write_text("A short line of a few plain words\n" + "a much longer line of words " * 3)
    least = min(inputs(f"text:{path}", bert, n="all").lengths)
    made = inputs(f"text:{path}", bert, n="all", max_length=least)
    assert made.notes == [f"1 of 2 texts were longer than {least} tokens and were cut"]
    long = next(place for place, text in enumerate(made.texts) if text.startswith("a much"))
    assert made[long : long + 1].notes == [f"1 of 1 texts were longer than {least} tokens and were cut"]
    assert made[1 - long : 2 - long].notes == []


def test_no_text_exceeds_what_the_model_takes(bert, gpt2, tmp_path):
    long = tmp_path / "long.txt"
    long.write_text(" ".join(SENTENCES * 5))
    for model, limit in ((bert, 40), (gpt2, 30)):
        made = inputs(f"text:{long}", model)
        assert made.batch["input_ids"].shape == (1, limit)
        assert made.notes == [f"1 of 1 texts were longer than {limit} tokens and were cut"]
        with torch.no_grad():
            model.module(**made.batch)
        with pytest.raises(InputError, match=rf"max_length 41 was asked for, and .* at most {limit} tokens"):
            inputs(f"text:{long}", model, max_length=41)


@pytest.mark.parametrize("max_length", [0, 2, "9"])
def test_a_length_leaves_room_for_a_word(bert, text, max_length):
    with pytest.raises(InputError, match="max_length is a whole number from 3 up"):
        inputs(f"text:{text}", bert, max_length=max_length)


def test_a_tokenizer_of_another_model_is_noticed(tmp_path, text):
    own, other = bert_folder(tmp_path / "own"), tmp_path / "other"
    from transformers import BertConfig, BertModel

    config = BertConfig.from_pretrained(own)
    config.vocab_size = 20
    BertModel(config).save_pretrained(other)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (other / name).write_bytes((own / name).read_bytes())
    with pytest.raises(InputError, match=r"the model knows 20 \(0 to 19\)"):
        inputs(f"text:{text}", load(f"hf:{other}"))


def test_bundled_prose_is_lines_of_the_committed_files(bert):
    from workbench.core import paths

    made = inputs("bundled:prose", bert, n=40, seed=3)
    for name, line in zip(made.ids, made.texts, strict=True):
        stem, _, number = name.removeprefix("prose/").partition(":")
        lines = (paths.data_dir() / "prose" / f"{stem}.txt").read_text(encoding="utf-8").split("\n")
        assert lines[int(number) - 1].strip() == line
        assert len(line) > 30
        assert not line.startswith("=")


def test_files_that_are_no_text(bert, tmp_path):
    (tmp_path / "latin.txt").write_bytes("naïve café".encode("latin-1") * 9)
    with pytest.raises(InputError, match="not UTF-8 text: byte 2 is 0xef"):
        inputs(f"text:{tmp_path / 'latin.txt'}", bert)
    (tmp_path / "short.txt").write_text(" \n\n")
    with pytest.raises(InputError, match="has no text"):
        inputs(f"text:{tmp_path / 'short.txt'}", bert)
    with pytest.raises(InputError, match=r"is a folder; name one file: latin\.txt, short\.txt"):
        inputs(f"text:{tmp_path}", bert)
    with pytest.raises(InputError, match="there is no file"):
        inputs(f"text:{tmp_path / 'none.txt'}", bert)


def test_wikitext_from_the_cache_and_without_it(bert, tmp_path, monkeypatch):
    import pandas as pd
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(samples.hub, "cached_file", lambda *_: None)
    with pytest.raises(
        MissingResource, match=r"wikitext-103 is not on this machine(?s:.)*Salesforce/wikitext"
    ):
        inputs("wikitext-103", bert)
    heading = " = = = A heading that is long enough to count = = = \n"
    rows = ["", " = Short = \n", *(f" {line} \n" for line in SENTENCES), heading]
    pd.DataFrame({"text": rows}).to_parquet(tmp_path / "test.parquet")
    monkeypatch.setattr(samples.hub, "cached_file", lambda *_: str(tmp_path / "test.parquet"))
    made = inputs("wikitext-103", bert)
    assert sorted(made.texts) == sorted([*SENTENCES, heading.strip()])


# What does not fit ------------------------------------------------------------------------------------------


def test_images_and_texts_are_distinguished(vit, bert):
    with pytest.raises(InputError, match="takes texts, and bundled:photos gives images; try bundled:prose"):
        inputs("bundled:photos", bert)
    with pytest.raises(InputError, match="takes images, and bundled:prose gives texts; try bundled:photos"):
        inputs("bundled:prose", vit)


def test_what_is_no_model_or_no_spec_is_named_by_its_type(vit):
    with pytest.raises(InputError, match=r"a model from workbench\.load, not for a str"):
        inputs("bundled:photos", "vit_tiny_patch16_224")
    with pytest.raises(
        InputError,
        match="or are a list of images or texts; got a Tensor",
    ):
        inputs(torch.zeros(2, 3), vit)


@pytest.mark.parametrize(
    ("spec", "offer"),
    [("bundled:digit", "'digits'"), ("bundle:photos", "'bundled:photos'"), ("wikitext-2", "'wikitext-103'")],
)
def test_unknown_specs_offer_the_nearest(vit, spec, offer):
    with pytest.raises(UnknownName, match=offer):
        inputs(spec, vit)


def test_specs_that_lack_their_kind_or_path(vit, tmp_path):
    with pytest.raises(InputError, match="say what it holds: images:"):
        inputs(str(tmp_path), vit)
    with pytest.raises(InputError, match="write images:PATH"):
        inputs("images:", vit)
    with pytest.raises(InputError, match=r"unknown preprocessing 'timm'.*model.*saritas2025"):
        inputs("bundled:digits", vit, preprocessing="timm")
