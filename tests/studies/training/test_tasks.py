import numpy as np
import pytest
import torch
from PIL import Image

from workbench.core.errors import InputError, UnknownName
from workbench.models.tokenizer import SPECIAL, character_tokenizer
from workbench.studies.training.recipes import Images
from workbench.studies.training.tasks import TASKS, load_task
from workbench.studies.training.tasks.images import TEST_TILES, TILES, cuts_of
from workbench.studies.training.tasks.texts import HELD_OUT, Windows


@pytest.mark.parametrize("name", [name for name, entry in TASKS.items() if not entry.takes])
def test_a_task_gives_what_it_says(name):
    task = load_task(name, 20)
    assert task.name == name
    assert len(task.train) == task.data["train"]["n"] == 20
    assert len(task.test) == task.data["test"]["n"] > 0
    for split in (task.train, task.test):
        x, y = split[0]
        assert x.shape == task.watched["train"][0].shape
        assert (y.shape == ()) == bool(task.classes)
    assert set(task.watched) == {"train", "test"}
    assert load_task(name, 20).data == task.data
    assert load_task(name, 21).data["train"] != task.data["train"]


def test_photographs_are_labels_of_their_cuts():
    task = load_task("photos")
    for split, tiles in ((task.train, TILES**2 - len(TEST_TILES)), (task.test, len(TEST_TILES))):
        labels = split.tensors[1]
        assert torch.bincount(labels).tolist() == [9 * tiles] * len(task.classes)
        assert split.tensors[0].shape[1:] == (3, 32, 32)
    assert "astronaut" in task.classes


def test_no_pixel_of_a_photograph_is_in_both_splits():
    rows, columns = 8 * TILES, 8 * TILES + 5
    image = np.zeros((rows, columns), dtype=np.uint8)
    for row, column in TEST_TILES:  # white where test images come from, black elsewhere
        top, left = row * 8, column * 8 + 2
        image[top : top + 8, left : left + 8] = 255
    cuts = cuts_of(image, size=12)
    assert len(cuts["test"]) == 9 * 4
    assert len(cuts["train"]) == 9 * 12
    assert all((cut == 255).all() and cut.shape == (12, 12, 3) for cut in cuts["test"])
    assert all((cut == 0).all() for cut in cuts["train"])


def test_limits_keep_every_class():
    task = load_task("photos", 36)
    assert set(task.train.tensors[1].tolist()) == set(range(len(task.classes)))


def test_prose_holds_three_files_out_and_its_ids_are_those_of_the_tokenizer():
    task = load_task("prose")
    characters = task.preprocessing["characters"]
    assert task.architecture == {"vocabulary": len(SPECIAL) + len(characters)}
    assert task.data["held_out"] == list(HELD_OUT)
    assert 0.15 < task.data["test"]["characters"] / task.data["train"]["characters"] < 0.25
    text = character_tokenizer(characters).decode(task.test.ids[:200]).replace("\n", " ")
    assert text.startswith("= ")
    assert (task.test.ids >= len(SPECIAL)).all()


def test_windows_lie_end_to_end_and_foretell_the_next_token():
    ids = torch.arange(100, 123)
    windows = Windows(ids, 5)
    assert len(windows) == 4
    for number in range(4):
        x, y = windows[number]
        assert x.tolist() == list(range(100 + 5 * number, 105 + 5 * number))
        assert y.tolist() == [value + 1 for value in x.tolist()]
    assert len(Windows(torch.arange(5), 5)) == 0


def test_moving_windows_begin_anywhere_but_stay_inside():
    ids = torch.arange(23)
    windows = Windows(ids, 5, moving=True)
    torch.manual_seed(0)
    starts = {number: {windows[number][0][0].item() for _ in range(200)} for number in range(len(windows))}
    assert starts == {0: set(range(5)), 1: set(range(5, 10)), 2: set(range(10, 15)), 3: {15, 16, 17}}


def test_a_text_of_ones_own(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abcd" * 100 + "z" * 44, encoding="utf-8")
    task = load_task("text", data=path, architecture={"context": 6})
    assert task.preprocessing == {"characters": "abcd", "context": 6}
    assert task.output == (6, 6)
    unknown = SPECIAL.index("[UNK]")
    assert task.test[0][0].tolist() == [unknown] * 6


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for split, count in (("train", 3), ("val", 2)):
        for label in ("cat", "dog"):
            place = tmp_path / "images" / split / label
            place.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 255, (9, 11, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return tmp_path / "images"


def test_a_folder_of_images(folder):
    images = Images(smallest_crop=0.2, flip=0.5, random_erasing=1.0)
    task = load_task("images", 4, data=folder, architecture={"img_size": 8}, images=images)
    assert task.classes == ("cat", "dog")
    assert task.architecture == {"num_classes": 2, "in_chans": 3}
    assert (len(task.train), len(task.test)) == (4, 4)
    assert [task.train[number][1] for number in range(4)] == [0, 0, 1, 1]
    assert task.train[0][0].shape == task.watched["train"][0].shape == (3, 8, 8)
    torch.testing.assert_close(task.test[1][0], task.test[1][0])
    assert not torch.equal(task.train[1][0], task.train[1][0])
    (folder / "train" / "cat" / "0.png").write_bytes((folder / "train" / "dog" / "1.png").read_bytes()[:-3])
    assert load_task("images", 4, data=folder, architecture={"img_size": 8}).data != task.data


def test_folders_that_will_not_do(folder, tmp_path):
    size = {"architecture": {"img_size": 8}}
    with pytest.raises(InputError, match="task images needs data"):
        load_task("images", **size)
    with pytest.raises(InputError, match=r"there is no .*none; task images takes FOLDER"):
        load_task("images", data=tmp_path / "none", **size)
    with pytest.raises(InputError, match=r"must hold train/ and val/ .* its folders are: images"):
        load_task("images", data=tmp_path, **size)
    with pytest.raises(InputError, match=r"is no folder"):
        load_task("images", data=folder / "train" / "cat" / "0.png", **size)
    (folder / "train" / "cow").mkdir()
    with pytest.raises(InputError, match=r"must hold a folder of images for each class.*cow"):
        load_task("images", data=folder, **size)
    (folder / "train" / "cow" / "0.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match="same class folders; only one of them has cow"):
        load_task("images", data=folder, **size)
    (folder / "val" / "cow").mkdir()
    (folder / "val" / "cow" / "0.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"cow/0.png cannot be read"):
        load_task("images", data=folder, **size)


def test_texts_that_will_not_do(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("too short")
    with pytest.raises(
        InputError, match=r"test text has 0 characters, and one example takes 129|9 characters"
    ):
        load_task("text", data=path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty holds no text; .* a folder of \*.txt"):
        load_task("text", data=tmp_path / "empty")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8 text: byte 0 is 0xff"):
        load_task("text", data=path)
    with pytest.raises(InputError, match=r"holds no wiki.train"):
        load_task("wikitext-103", data=tmp_path)
    with pytest.raises(InputError, match="needs context, a whole number above 0"):
        load_task("prose", architecture={"name": "lm"})
    with pytest.raises(UnknownName, match="did you mean 'prose'"):
        load_task("pros")


def test_wikitext_from_a_folder(tmp_path):
    (tmp_path / "wiki.train.raw").write_text(" = A title = \n some words of a text \n" * 9)
    (tmp_path / "wiki.test.raw").write_text(" = B title = \n other words \n" * 3)
    task = load_task("wikitext-103", data=tmp_path, architecture={"context": 10})
    assert "B" not in task.preprocessing["characters"]
    assert task.data["test"]["characters"] == 84
