"""Scenes and passages that models of embedded tasks are looked into with: clean and changed, in one order."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import workbench
from workbench.models.loading import load
from workbench.studies.evaluation.embedded_passages import attention_on_swapped, embedded_passages
from workbench.studies.evaluation.embedded_scenes import embedded_scenes, predicted_masks
from workbench.studies.training import train
from workbench.studies.training.tasks.embedded import EMBEDDED

N = 3


@pytest.fixture(scope="module")
def small():
    """The same data with a few examples."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("mosaics", "genres"):
            patched.setitem(EMBEDDED, name, dataclasses.replace(EMBEDDED[name], train=12, test=9))
        yield


@pytest.fixture(scope="module")
def segmenter(small, tmp_path_factory):
    run = train(
        "segmentation", tmp_path_factory.mktemp("mosaics"), epochs=1, limit=8, device="cpu", progress=False
    )
    return load(f"file:{run.checkpoints[-1]}")


@pytest.fixture(scope="module")
def classifier(small, tmp_path_factory):
    out = tmp_path_factory.mktemp("genres")
    run = train("passages", out, attention="softmax-sym", epochs=1, limit=8, device="cpu", progress=False)
    return load(f"file:{run.checkpoints[-1]}")


def test_scenes_are_clean_and_corrupted_with_the_masks_of_their_own_and_of_another(segmenter):
    scenes = embedded_scenes("mosaics", segmenter, n=N, corruption="gaussian-noise", severity=2)
    clean, corrupted = scenes.given["clean"], scenes.given["corrupted"]
    assert clean.ids == corrupted.ids
    assert (clean.spec, clean.n) == ("embedded:mosaics, clean", N)
    own = np.abs(np.stack(clean.images).astype(float) - np.stack(corrupted.images)).mean((1, 2, 3))
    assert (own > 5).all()
    names = sorted(path.name for path in Path(scenes.masks).iterdir())
    for name, truth in zip(clean.ids, scenes.truth, strict=True):
        mask = np.array(Image.open(Path(scenes.masks) / name)).astype(int)
        following = names[(names.index(name) + 1) % len(names)]
        assert np.array_equal(truth, mask - 1)
        other = np.array(Image.open(Path(scenes.other_masks) / name))
        assert np.array_equal(other, np.array(Image.open(Path(scenes.masks) / following)))
    masks, right = predicted_masks({"plain": segmenter}, scenes)
    with torch.no_grad():
        found = segmenter.module(corrupted.batch).argmax(1).numpy()
    assert np.array_equal(np.stack(masks["plain"]["corrupted"]), found)
    row = right[(right["condition"] == "corrupted") & (right["input"] == clean.ids[1])].iloc[0]
    assert row["value"] == (found[1] == scenes.truth[1]).mean()
    frame = workbench.analyze(
        "attention-patterns", model=segmenter, inputs=clean, masks=scenes.masks, layers=[0]
    )
    assert "pattern_segment" in set(frame["metric"])


def test_attention_on_swapped_words_is_what_a_loop_over_queries_computes(classifier):
    passages = embedded_passages(classifier, [0.0, 0.3], n=N)
    assert not passages.swapped[0.0].any()
    new = passages.swapped[0.3]
    characters = classifier.meta["preprocessing"]["characters"]
    letter = characters.index("A") + 2  # behind padding and unknown
    assert (passages.given[0.3]["input_ids"][new] == letter).all()
    frame = attention_on_swapped({"plain": classifier}, passages, 0.3)
    assert set(frame["attention"]) == {"plain"}
    batch = passages.given[0.3]
    attn = workbench.capture(classifier, batch, layers=[1], sites=["attn"])[1].attn.double()
    number, head = 1, 2
    real = int(batch.get("attention_mask", torch.ones_like(batch["input_ids"]))[number].sum())
    shares = []
    for query in range(real):
        keys = new[number, : query + 1]
        if keys.any() and not keys.all():
            shares.append(float(attn[number, head, query, : query + 1][keys].sum()))
    row = frame[(frame["input"] == str(number)) & (frame["layer"] == 1) & (frame["head"] == head)].iloc[0]
    assert row["value"] == pytest.approx(sum(shares) / len(shares), rel=1e-4)
    assert row["null_low"] <= row["null_mean"] <= row["null_high"]
    mean = frame[frame["input"].isna() & (frame["layer"] == 1)].iloc[0]
    single = frame[frame["input"].notna() & (frame["layer"] == 1)]
    assert mean["value"] == pytest.approx(single["value"].mean())
    draw, drawn = np.random.default_rng(0), []
    for _ in range(400):  # each query's weights in another order, of every input and head by itself
        shares = []
        for number, head in itertools.product(range(len(attn)), range(attn.shape[1])):
            real = int(batch.get("attention_mask", torch.ones_like(batch["input_ids"]))[number].sum())
            rows = [
                draw.permutation(attn[number, head, query, : query + 1].numpy())[
                    new[number, : query + 1]
                ].sum()
                for query in range(real)
                if new[number, : query + 1].any() and not new[number, : query + 1].all()
            ]
            shares += [np.mean(rows)] if rows else []
        drawn.append(np.mean(shares))
    assert mean["null_mean"] == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / 20)
    assert mean["null_high"] - mean["null_mean"] == pytest.approx(1.96 * np.std(drawn), rel=0.15)
