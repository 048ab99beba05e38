import os
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from workbench.core.errors import InputError, UnknownName
from workbench.data.pools import Unreadable, digits_split, listed_inputs, open_pool, prepare_digits


def test_train_and_test_are_disjoint_and_together_everything():
    train, test = digits_split("train"), digits_split("test")
    numbers = [int(name.rsplit("/", 1)[1]) for name in train.ids + test.ids]
    assert sorted(numbers) == list(range(len(load_digits().target)))


def test_no_test_image_is_also_a_training_image():
    train = {image.tobytes() for image in digits_split("train").raw}
    assert not train & {image.tobytes() for image in digits_split("test").raw}


def test_every_class_gives_a_quarter_to_the_test_set():
    train, test = digits_split("train"), digits_split("test")
    counts = torch.bincount(test.labels), torch.bincount(train.labels) + torch.bincount(test.labels)
    assert torch.equal(counts[0], counts[1] // 4)


def test_ids_name_the_image_in_scikit_learn():
    bunch, test = load_digits(), digits_split("test")
    place = 11
    number = int(test.ids[place].removeprefix("digits/test/"))
    np.testing.assert_array_equal(test.raw[place], bunch.images[number])
    assert test.labels[place] == bunch.target[number]


def test_training_images_are_normalised():
    images = digits_split("train").images
    assert images.shape == (1352, 1, 16, 16)
    assert images.mean().item() == pytest.approx(0, abs=1e-3)
    assert images.std().item() == pytest.approx(1, abs=1e-3)


def test_resizing_keeps_a_constant_image_constant():
    prepared = prepare_digits(np.full((3, 8, 8), 7, dtype=np.uint8))
    torch.testing.assert_close(prepared, prepared[:1, :, :1, :1].expand(3, 1, 16, 16))


def test_preparing_one_image_or_many_is_the_same():
    raw = digits_split("test").raw[:5]
    torch.testing.assert_close(prepare_digits(raw)[3:4], prepare_digits(raw[3:4]), rtol=0, atol=0)


def test_hash_sees_a_changed_pixel_label_or_order():
    first = digits_split("test").first(6)
    raw = first.raw.copy()
    raw[2, 3, 4] += 1
    changed = [
        first._replace(raw=raw),
        first._replace(labels=first.labels + 1),
        first._replace(ids=first.ids[::-1]),
        digits_split("test").first(5),
    ]
    assert len({first.sha256(), *(other.sha256() for other in changed)}) == 5
    assert first.sha256() == digits_split("test").first(6).sha256()


def test_a_text_for_a_name_of_inputs_is_told_to_go_into_a_list():
    with pytest.raises(UnknownName, match=r"a text goes into a list: \['The capital of France'\]"):
        open_pool("The capital of France")


def test_unknown_split():
    with pytest.raises(UnknownName, match="did you mean 'test'"):
        digits_split("tests")


def test_a_link_that_leads_to_itself_is_one_image_that_cannot_be_read(tmp_path):
    Image.new("L", (5, 7)).save(tmp_path / "a.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    pool = open_pool(f"images:{tmp_path}")
    assert list(pool.ids) == ["a.png", "loop.png"]
    assert pool.read(0).content.shape == (7, 5)
    with pytest.raises(Unreadable, match="symbolic links"):
        pool.read(1)


def tiff(values, code, kind, bits=16):
    """A TIFF of one row; ``kind`` 1 is unsigned, 2 signed."""
    data = b"".join(struct.pack(f"<{code}", value) for value in values)
    entries = {
        256: len(values),
        257: 1,
        258: bits,
        259: 1,
        262: 1,
        273: 0,
        277: 1,
        278: 1,
        279: len(data),
        339: kind,
    }
    entries[273] = 8 + 2 + 12 * len(entries) + 4
    lines = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries.items())
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + lines + bytes(4) + data


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        (tiff([-1000, 0, 40, 3000], "h", 2), "whole numbers from -1000 to 3000"),
        (tiff([0, 1, 70000], "I", 1, 32), "whole numbers from 0 to 70000"),
        (tiff([0, 256, 40000, 65535], "H", 1), [[0, 1, 156, 255]]),
        (tiff([0, 256, 3000], "h", 2), [[0, 1, 11]]),
    ],
)
def test_numbers_of_a_pixel_do_not_wrap(tmp_path, content, outcome):
    (tmp_path / "a.tif").write_bytes(content)
    pool = open_pool(f"images:{tmp_path}")
    if isinstance(outcome, str):
        with pytest.raises(Unreadable, match=outcome):
            pool.read(0)
    else:
        assert pool.read(0).content.tolist() == outcome


def test_a_name_that_is_not_utf_8_is_read_and_printable(tmp_path):
    for folder in (tmp_path / "flat", tmp_path / "nested" / os.fsdecode(b"caf\xe9")):
        folder.mkdir(parents=True)
        Image.new("L", (5, 7)).save(folder / "plain.png")
        (folder / "plain.png").rename(folder / os.fsdecode(b"caf\xe9.png"))
    flat, nested = open_pool(f"images:{tmp_path / 'flat'}"), open_pool(f"imagenet:{tmp_path / 'nested'}")
    assert [*flat.ids, *nested.ids] == ["caf\\xe9.png", "caf\\xe9/caf\\xe9.png"]
    assert nested.classes == ("caf\\xe9",)
    assert flat.read(0).content.shape == nested.read(0).content.shape == (7, 5)
    assert len(flat.read(0).digest()) == 32


def test_a_list_of_images_in_a_spec_names_files(tmp_path):
    Image.new("L", (5, 7)).save(tmp_path / "a.png")
    pool = open_pool(f'images:["{tmp_path}/a.png"]')
    assert (pool.listed, [*pool.ids], pool.read(0).content.shape) == (True, ["a.png"], (7, 5))
    with pytest.raises(InputError, match="written as in JSON"):
        open_pool("images:[a.png]")


def test_a_text_of_the_same_name_is_the_text_of_an_image(tmp_path):
    for number, name in enumerate(("a", "b", "c")):
        Image.new("L", (3, 2), number).save(tmp_path / f"{name}.png")
    (tmp_path / "a.txt").write_text(" a cat\n", encoding="utf-8")
    (tmp_path / "c.txt").write_text("\n")
    pool = open_pool(f"images:{tmp_path}")
    assert [pool.read(i).caption for i in range(3)] == ["a cat", None, None]
    (tmp_path / "c.txt").write_bytes(b"\xff")
    with pytest.raises(Unreadable, match=r"c\.txt, cannot be read"):
        pool.read(2)


def test_a_list_is_of_images_where_all_of_it_ends_like_files_of_images(tmp_path):
    paths = [tmp_path / "one.png", tmp_path / "two.JPG"]
    for path in paths:
        Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save(path)
    names = [str(path) for path in paths]
    kinds = {"images": [names, paths], "text": [["a prompt", "another"], ["a prompt", names[0]]]}
    for scheme, lists in kinds.items():
        for items in lists:
            assert listed_inputs(items)[0].partition(":")[0] == scheme
    assert listed_inputs(names, "text")[0].startswith("text:")
