"""Folders of some of a model's classes (ImageNet-A, -R), and of out-of-distribution images (ImageNet-O)."""

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score
from timm.data import ImageNetInfo

from workbench import inputs, load
from workbench.core.errors import InputError
from workbench.models.architectures import build
from workbench.models.checkpoints import write_checkpoint
from workbench.studies.evaluation import evaluate
from workbench.studies.evaluation.pixel_models import open_images

SIZE, PLACES = 8, [3, 41, 500, 998]


def _model(folder, outputs, **said):
    """A file with an untrained classifier of colour images."""
    options = {"name": "vit", "img_size": SIZE, "patch_size": 4, "in_chans": 3, "num_classes": outputs}
    architecture = {**options, "embed_dim": 12, "depth": 1, "num_heads": 2}
    torch.manual_seed(outputs)
    means = {
        "size": [SIZE, SIZE],
        "channels": 3,
        "resize": SIZE,
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.25, 0.3],
    }
    path = folder / f"of-{outputs}" / "epoch-000.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(
        path, build(architecture), {"architecture": architecture, "preprocessing": means, **said}
    )
    return f"file:{path}"


def _folder(place, names, each=3, seed=0):
    rng = np.random.default_rng(seed)
    for name in names:
        (place / name).mkdir(parents=True)
        for number in range(each):
            pixels = rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / name / f"{number}.png")
    return f"imagenet:{place}"


@pytest.fixture(scope="module")
def synsets():
    info = ImageNetInfo()
    return [info.index_to_label_name(place) for place in PLACES]


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    return load(_model(tmp_path_factory.mktemp("thousand"), 1000))


def test_a_subset_is_chosen_among_its_own_classes(thousand, tmp_path, synsets):
    spec = _folder(tmp_path, synsets)
    classifier, images = open_images(thousand, spec, "all", 0)
    batch = inputs(spec, thousand, n="all").batch
    with torch.no_grad():
        logits = thousand.module(batch)
    right = []
    for row, name in zip(logits, images.ids, strict=True):
        best = max(PLACES, key=lambda place, row=row: float(row[place]))
        right.append(best == PLACES[synsets.index(name.split("/")[0])])
    torch.testing.assert_close(classifier.logits(images.pixels), logits[:, PLACES], atol=1e-5, rtol=1e-5)
    frame = evaluate(thousand, inputs=spec, n="all")
    assert frame.loc[frame["metric"] == "accuracy_top1", "value"].item() == pytest.approx(np.mean(right))
    assert 0 < np.mean(right) < 1
    assert any("4 of the 1000 classes" in note and "left out" in note for note in frame.attrs["notes"])
    # All of 1000 logits would be right about (nearly) none of these.
    places = torch.tensor([PLACES[target] for target in images.targets.tolist()])
    assert (logits.argmax(1) == places).sum() < sum(right)


def test_an_attack_sees_the_same_classes(thousand, tmp_path, synsets):
    frame = evaluate(thousand, "noise", _folder(tmp_path, synsets), epsilons=[0], n="all")
    clean = evaluate(thousand, inputs=f"imagenet:{tmp_path}", n="all")
    assert frame["value"].tolist() == clean["value"].tolist()


def test_a_folder_for_every_output_is_numbered_as_before(tmp_path):
    model = load(_model(tmp_path, 4))
    spec = _folder(tmp_path / "images", ["b", "a", "d", "c"])
    classifier, images = open_images(model, spec, "all", 0)
    assert classifier.kept is None
    assert [name[0] for name in images.ids] == ["abcd"[target] for target in images.targets.tolist()]
    assert evaluate(model, inputs=spec, n="all").attrs["notes"] == []


def test_names_that_a_model_was_trained_on_are_found(tmp_path):
    model = load(_model(tmp_path, 5, classes=["ant", "bee", "cat", "dog", "elk"]))
    classifier, _ = open_images(model, _folder(tmp_path / "some", ["elk", "bee"]), "all", 0)
    assert classifier.kept == [1, 4]


@pytest.mark.parametrize(
    ("outputs", "names", "said"),
    [
        (1000, ["n01440764", "n99999999"], "n99999999 is none of the 1000 classes"),
        (7, ["n01440764", "n01443537"], "the model has 7 outputs, whose names are not known"),
    ],
)
def test_class_lists_that_do_not_match_are_refused(tmp_path, outputs, names, said):
    model = load(_model(tmp_path, outputs))
    spec = _folder(tmp_path / "images", names)
    with pytest.raises(InputError, match=rf"does not fit file:.*{said}"):
        evaluate(model, inputs=spec, n=2)
    assert len(inputs(spec, model, n=2)) == 2  # an analysis without classes reads them as ever


def test_the_images_of_a_folder_are_out_of_distribution(thousand, tmp_path, synsets):
    inside = _folder(tmp_path / "inside", synsets)
    outside = _folder(tmp_path / "outside", synsets[:2], each=2, seed=1)
    frame = evaluate(thousand, "ood", inside, n="all", settings={"outside": outside})
    (row,) = frame.to_dict("records")
    assert row["kind"] == outside
    scores, is_ood = [], []
    with torch.no_grad():
        for spec, label in ((inside, 0), (outside, 1)):
            for one in thousand.module(inputs(spec, thousand, n="all").batch):
                scores.append(-float(one[PLACES].double().softmax(0).max()))
                is_ood.append(label)
    assert len(scores) == 12 + 4
    assert row["value"] == pytest.approx(average_precision_score(is_ood, scores), abs=1e-6)
    assert any("4 images of" in note and "guessing is 0.25" in note for note in frame.attrs["notes"])
    few = evaluate(thousand, "ood", inside, n=3, settings={"outside": outside})
    assert any("3 images of" in note and "guessing is 0.5" in note for note in few.attrs["notes"])
    with pytest.raises(InputError, match="there is no folder"):
        evaluate(thousand, "ood", inside, n=3, settings={"outside": f"imagenet:{tmp_path / 'none'}"})
