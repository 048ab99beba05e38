"""Segmentation: scenes in ADE20K's layout, the scores of pixels, the control, and evaluation."""

import dataclasses
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import workbench
from workbench.core.errors import InputError
from workbench.models.architectures import build
from workbench.studies.evaluation import evaluate
from workbench.studies.evaluation.embedded import undergone
from workbench.studies.evaluation.pixel_models import SceneModel
from workbench.studies.evaluation.scenes import climb
from workbench.studies.training import train
from workbench.studies.training.objectives import SEGMENTATION, UNLABELLED, with_mean_iou
from workbench.studies.training.recipes import Images, Recipe
from workbench.studies.training.tasks import load_task
from workbench.studies.training.tasks.embedded import EMBEDDED, mosaics
from workbench.studies.training.tasks.segmentation import Patches, most_frequent

SIZES = {"img_size": 8, "patch_size": 4}
TINY = Recipe(
    "segmentation",
    {"name": "segmenter", "img_size": 32, "patch_size": 16, "embed_dim": 8, "depth": 1, "num_heads": 2},
    epochs=1,
    batch_size=4,
    learning_rate=1e-3,
)


@pytest.fixture
def few(monkeypatch):
    for name in ("mosaics", "collages"):
        monkeypatch.setitem(EMBEDDED, name, dataclasses.replace(EMBEDDED[name], train=8, test=6))


def scenes(folder, labels=((0, 1), (2, 2)), names=("cat", "dog")):
    """Two images in ADE20K's layout: 12 × 8 pixels, whose middle square is of four classes in quarters."""
    marks = np.kron(np.array(labels, np.uint8), np.ones((4, 4), np.uint8))
    marks = np.concatenate([np.full((8, 2), 1, np.uint8), marks, np.full((8, 2), 1, np.uint8)], axis=1)
    for split in ("training", "validation"):
        for kind in ("images", "annotations"):
            (folder / kind / split).mkdir(parents=True)
        Image.fromarray(marks * 100).convert("RGB").save(folder / "images" / split / "one.png")
        Image.fromarray(marks).save(folder / "annotations" / split / "one.png")
    rows = "".join(f"{number}\t0.1\t{name}\n" for number, name in enumerate(names, 1))
    (folder / "objectInfo150.txt").write_text(f"Idx\tRatio\tName\n{rows}")
    return folder


def load(folder):
    return load_task("segmentation", data=folder, architecture=SIZES)


# Scores -----------------------------------------------------------------------------------------------------


def test_iou_and_accuracies_are_those_of_counting():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 5, 7, generator=draw)
    targets = torch.randint(3, (3, 5, 7), generator=draw)  # the fourth class is only said
    targets[0, :2] = UNLABELLED
    scores = SEGMENTATION.score(logits, targets)
    found = SEGMENTATION.derive({name: float(value.mean()) for name, value in scores.items()})
    said, held = [], []
    for answer, label in zip(logits.argmax(1).flatten().tolist(), targets.flatten().tolist(), strict=True):
        if label != UNLABELLED:
            said.append(answer)
            held.append(label)
    ious, accuracies = [], []
    for label in range(4):
        both = sum(a == b == label for a, b in zip(said, held, strict=True))
        ious.append(both / (said.count(label) + held.count(label) - both))
        if held.count(label):
            accuracies.append(both / held.count(label))
    assert found["mean_iou"] == pytest.approx(sum(ious) / 4)
    assert found["class_accuracy"] == pytest.approx(sum(accuracies) / 3)
    assert found["accuracy"] == pytest.approx(
        sum(a == b for a, b in zip(said, held, strict=True)) / len(held)
    )
    per_image = []
    for image, labels in zip(logits, targets, strict=True):
        real = labels != UNLABELLED
        per_image.append(-image.log_softmax(0).permute(1, 2, 0)[real].gather(1, labels[real][:, None]).mean())
    torch.testing.assert_close(scores["loss"], torch.stack(per_image))


def test_a_class_that_is_nowhere_does_not_count_and_nothing_is_no_number():
    shares = {
        "right_0": 0.5,
        "labelled_0": 0.5,
        "said_0": 1.0,
        "right_1": 0.0,
        "labelled_1": 0.0,
        "said_1": 0.0,
    }
    found = with_mean_iou({"loss": 1.0, **shares})
    assert (found["mean_iou"], found["class_accuracy"], found["accuracy"]) == (0.5, 1.0, 1.0)
    nothing = with_mean_iou({"loss": 0.0, "right_0": 0.0, "labelled_0": 0.0, "said_0": 0.0})
    assert all(math.isnan(nothing[name]) for name in ("mean_iou", "class_accuracy", "accuracy"))


def test_the_trivial_predictor_says_the_most_frequent_class(tmp_path):
    task = load(scenes(tmp_path))
    found = most_frequent(task)
    # of the pixels that have a class, a third are cats and two thirds are dogs
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["mean_iou"] == pytest.approx(1 / 3)
    assert found["class_accuracy"] == pytest.approx(1 / 2)
    assert found["loss"] == pytest.approx(-(math.log(1 / 3) + 2 * math.log(2 / 3)) / 3)


# A folder ---------------------------------------------------------------------------------------------------


def test_an_annotation_is_read_as_the_benchmark_means_it(tmp_path):
    task = load(scenes(tmp_path))
    assert (task.classes, task.output) == (("cat", "dog"), (2, 8, 8))
    image, targets = task.test[0]
    assert image.shape == (3, 8, 8)
    quarters = [
        [UNLABELLED, 0],
        [1, 1],
    ]  # 0 is no class, 1 the first; the sides of the longer side are cut off
    assert torch.equal(targets, torch.tensor(quarters).repeat_interleave(4, 0).repeat_interleave(4, 1))


def test_training_images_are_mirrored_with_their_classes(tmp_path):
    folder = scenes(tmp_path)
    plain, turned = (
        load_task("segmentation", data=folder, architecture=SIZES, images=Images(flip=share)).train[0]
        for share in (0.0, 1.0)
    )
    for before, after in zip(plain, turned, strict=True):
        assert torch.equal(before.flip(-1), after)


def spoiled(folder, how):
    if how == "another layout":
        shutil.move(folder / "annotations" / "validation", folder / "labels")
    elif how == "no annotation":
        (folder / "annotations" / "training" / "one.png").unlink()
    elif how == "other size":
        Image.new("L", (5, 8)).save(folder / "annotations" / "training" / "one.png")
    elif how == "colours":
        Image.new("RGB", (12, 8)).save(folder / "annotations" / "training" / "one.png")
    elif how == "damaged":
        (folder / "annotations" / "training" / "one.png").write_bytes(b"PNG")
    elif how == "no list":
        (folder / "objectInfo150.txt").unlink()
    elif how == "a short list":
        (folder / "objectInfo150.txt").write_text("Idx\tName\n1\tcat\n")
    elif how == "a list with a gap":
        (folder / "objectInfo150.txt").write_text("Idx\tName\n1\tcat\n3\tdog\n")
    elif how == "another list":
        (folder / "objectInfo150.txt").write_text("cat\ndog\n")
    elif how == "an empty list":
        (folder / "objectInfo150.txt").write_text("Idx\tName\n")
    elif how == "no images":
        (folder / "images" / "training" / "one.png").unlink()
    return folder


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "another layout",
            r"and no annotations/validation; task segmentation takes a folder with images/training",
        ),
        (
            "no annotation",
            r"there is no .*one.png, the annotation of one.png; put it there, or remove the image",
        ),
        ("other size", r"has 5 × 8 pixels and .* 12 × 8; an annotation is as large as its image"),
        ("colours", r"has pixels of mode RGB; a grey or palette PNG holds the class of each"),
        ("damaged", r"the annotation .* cannot be read .*; replace or remove it"),
        ("no list", r"has no objectInfo150.txt, the list of classes"),
        (
            "a short list",
            r"has class 2, and the list of classes ends at 1; take the list and the annotations of one",
        ),
        ("a list with a gap", r"line 3: \['3', 'dog'\]; class 2 belongs here"),
        ("another list", r"begins with \['cat'\]; a list of classes has the columns Idx and Name"),
        ("an empty list", r"has a header and no classes; copy it again"),
        ("no images", r"holds no .jpg or .png; copy the images again"),
    ],
)
def test_folders_that_are_none(how, message, tmp_path):
    with pytest.raises(InputError, match=message):
        load(spoiled(scenes(tmp_path), how))


def test_a_folder_that_is_not_there(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InputError, match="is no folder; task segmentation takes a folder with images/training"
    ):
        load(tmp_path / "file")


# Made here --------------------------------------------------------------------------------------------------


def test_a_mosaic_has_the_texture_that_its_classes_say():
    cuts = {
        name: [np.full((32, 32, 3), 10 * number, np.uint8)] for number, name in enumerate(mosaics.TEXTURES, 1)
    }
    seen = set()
    for number in range(20):
        colours, labels = mosaics.mosaic(np.random.default_rng(number), cuts)
        assert np.array_equal(colours, np.repeat(10 * labels[..., None], 3, axis=2))
        seen.add(len(np.unique(labels)))
    assert seen <= {*range(1, mosaics.FIELDS[1] + 1)}
    assert max(seen) == mosaics.FIELDS[1]


def test_a_collage_has_the_ink_of_its_digits():
    cuts = {name: [np.zeros((32, 32, 3), np.uint8)] for name in mosaics.TEXTURES}
    ink = np.zeros((2, 8, 8))
    ink[0, 2:4], ink[1, :, 5] = 16, 12
    digits = ink, np.array([3, 7])
    _, labels = mosaics.collage(np.random.default_rng(1), cuts, digits)
    found = {label: int((labels == label).sum()) for label in np.unique(labels)}
    assert set(found) <= {1, 5, 9}
    assert found.get(5, 0) % 64 == found.get(9, 0) % 32 == 0
    assert 32 * 32 - found[1] == found.get(5, 0) + found.get(9, 0)


def test_no_cut_of_a_texture_is_in_both_splits():
    held = mosaics.textures()
    for name in mosaics.TEXTURES:
        train_cuts = {cut.tobytes() for cut in held["train"][name]}
        assert not train_cuts & {cut.tobytes() for cut in held["test"][name]}


def test_shuffled_patches_keep_their_pixels_and_their_classes():
    image = torch.arange(3 * 8 * 12.0).reshape(3, 8, 12)
    targets = image[0].long()
    moved, labels = Patches(4)(image, targets, np.random.default_rng(0))
    assert torch.equal(moved[0].long(), labels)
    assert not torch.equal(labels, targets)
    whole = {targets[r : r + 4, c : c + 4].numpy().tobytes() for r in (0, 4) for c in (0, 4, 8)}
    assert {labels[r : r + 4, c : c + 4].numpy().tobytes() for r in (0, 4) for c in (0, 4, 8)} == whole


# Trained ----------------------------------------------------------------------------------------------------


def test_it_is_trained_captured_and_evaluated(few, tmp_path):
    result = train("segmentation", tmp_path, recipe=TINY, device="cpu", progress=False)
    assert {"loss", "accuracy", "class_accuracy", "mean_iou", "projection_error", "macs"} <= set(
        result.metrics["metric"]
    )
    assert result.headline == "mean_iou"
    model = workbench.load(f"file:{result.checkpoints[-1]}")
    clean = evaluate(model, n="all").set_index("metric")["value"]
    assert clean["mean_iou"] == pytest.approx(result.test["mean_iou"], abs=1e-6)
    assert clean["pixel_accuracy"] == pytest.approx(result.test["accuracy"], abs=1e-6)
    attacked = evaluate(model, "fgsm", n="all", epsilons=[0])
    assert attacked["value"].tolist() == clean.tolist()
    rows = undergone(result.checkpoints[-1], "segmentation")
    assert {"corruptions", "fgsm 0.01", "pgd 0.06"} <= set(rows["split"])
    assert rows["metric"].nunique() == 3
    with pytest.raises(
        InputError, match=r"'cw' is for one class an image; a segmentation takes clean, fgsm, pgd"
    ):
        evaluate(model, "cw")
    with pytest.raises(
        InputError, match=r"segmentation:collages has the classes texture, .* was trained on brick"
    ):
        evaluate(model, inputs="segmentation:collages")
    with pytest.raises(InputError, match=r"not logits of every pixel; scenes take a model that segments"):
        evaluate("bundled:photos-vit", inputs="segmentation:mosaics")


def test_the_climb_is_the_steps_it_says():
    torch.manual_seed(0)
    module = build({**TINY.architecture, "num_classes": 3}).eval()
    model = SceneModel(module, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    pixels, targets = torch.rand(2, 3, 32, 32), torch.randint(3, (2, 32, 32))
    found = climb(model, pixels, targets, 0.1, steps=2, step_size=0.75)
    changed = pixels.clone()
    for _ in range(2):
        changed.requires_grad_()
        normal = (changed - torch.tensor([0.5, 0.4, 0.3]).view(-1, 1, 1)) / torch.tensor(
            [0.2, 0.3, 0.4]
        ).view(-1, 1, 1)
        loss = torch.nn.functional.cross_entropy(module(normal), targets)
        (slope,) = torch.autograd.grad(loss, changed)
        step = changed.detach() + 0.075 * slope.sign()
        changed = torch.maximum(torch.minimum(step, pixels + 0.1), pixels - 0.1).clamp(0, 1)
    torch.testing.assert_close(found, changed)
    with torch.no_grad():
        before, after = (
            torch.nn.functional.cross_entropy(model(images), targets) for images in (pixels, found)
        )
    assert after > before


@pytest.mark.parametrize("change", [{"mixup": 0.5}, {"label_smoothing": 0.1}])
def test_a_recipe_that_changes_images_alone_is_refused(change, few, tmp_path):
    with pytest.raises(InputError, match=r"task 'segmentation' has a target for every place"):
        train("segmentation", tmp_path, recipe=dataclasses.replace(TINY, **change), device="cpu")
