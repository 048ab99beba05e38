"""Scenes and passages that models of embedded tasks are looked into with: clean and changed, in one order."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import workbench
from workbench.core.errors import InputError
from workbench.models.loading import load
from workbench.studies.evaluation.conditions import (
    by_attention,
    condition_differences,
    condition_findings,
    condition_ranks,
    entropy_and_cosine,
    under_conditions,
)
from workbench.studies.evaluation.embedded_passages import attention_on_swapped, embedded_passages
from workbench.studies.evaluation.embedded_scenes import embedded_scenes, predicted_masks, segment_shares
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
    clean, corrupted = scenes.inputs["clean"], scenes.inputs["corrupted"]
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
    masks, right = predicted_masks([segmenter], scenes)
    assert scenes.images["corrupted"] is corrupted.images
    with torch.no_grad():
        found = segmenter.module(corrupted.batch).argmax(1).numpy()
    assert np.array_equal(np.stack(masks["softmax"]["corrupted"]), found)
    row = right[(right["condition"] == "corrupted") & (right["input"] == clean.ids[1])].iloc[0]
    assert row["value"] == (found[1] == scenes.truth[1]).mean()
    shares = segment_shares([segmenter], scenes, layers="0")
    for condition, masks in (
        ("own segments", scenes.masks),
        ("another image's segments", scenes.other_masks),
    ):
        frame = workbench.analyze(
            "attention-patterns", model=segmenter, inputs=clean, masks=masks, layers=[0], seed=0
        )
        own = shares[shares["condition"] == condition]
        assert own["value"].tolist() == frame.loc[frame["metric"] == "pattern_segment", "value"].tolist()
    assert set(shares["attention"]) == {"softmax"}


def test_runs_are_measured_one_after_the_other_and_say_their_condition(segmenter):
    scenes = embedded_scenes("mosaics", segmenter, n=N, corruption="gaussian-noise", severity=2)
    runs = [(words, segmenter, given) for words, given in scenes.inputs.items()]
    found = entropy_and_cosine(runs, layers="0,1", seed=0, null_samples=2)
    parts = found[["metric", "condition", "attention"]].drop_duplicates().to_numpy().tolist()
    metrics = ("attention_entropy_share", "token_cosine")
    assert parts == [[metric, words, "softmax"] for metric in metrics for words in scenes.inputs]
    asked = {"model": segmenter, "inputs": scenes.inputs["corrupted"], "layers": "0,1", "seed": 0}
    plain = workbench.analyze("token-similarity", null_samples=2, **asked)
    alone = found[(found["metric"] == "token_cosine") & (found["condition"] == "corrupted")]
    expected = plain[plain["metric"] == "token_cosine"]
    assert alone["value"].tolist() == expected["value"].tolist()
    said = condition_findings(found)
    assert [sentence.partition(":")[0] for sentence in said] == ["clean", "corrupted"] * 2
    assert said[3] == f"corrupted: {workbench.findings(plain, 'token_cosine')[0]}"
    with pytest.raises(InputError, match="3 parts by metric, condition and attention, of 4 runs"):
        condition_findings(found[found.index >= found.index[found["condition"] == "corrupted"][0]])


def test_models_are_named_by_their_attention(segmenter, classifier):
    assert [*by_attention([segmenter, classifier])] == ["softmax", "softmax-sym"]
    with pytest.raises(InputError, match="several models have softmax;"):
        by_attention([segmenter, segmenter])
    with pytest.raises(InputError, match="was not trained here"):
        under_conditions("attention-map", "attention_entropy_share", [("clean", bare(segmenter), {})])


def bare(model):
    return dataclasses.replace(model, meta=None)


def test_conditions_are_compared_by_image_and_ranked():
    rows = [("rpc-sym", "clean", 0.5), ("rpc-sym", "clean", 0.7), ("rpc-sym", "a noise", 0.2)]
    rows += [("bilateral", "clean", 1.0), ("bilateral", "a noise", 0.0)]
    frame = pd.DataFrame(rows, columns=["attention", "condition", "value"])
    assert condition_ranks(frame) == (
        "clean: most with bilateral (100 %), fewest with rpc-sym (60 [0, 100] %); "
        "a noise: most with rpc-sym (20 %), fewest with bilateral (0 %)"
    )
    paired = pd.DataFrame(
        [
            ("rpc-sym", name, number, value)
            for name, values in (("own", (0.5, 0.7)), ("other", (0.4, 0.5)))
            for number, value in enumerate(values)
        ],
        columns=["attention", "condition", "input", "value"],
    )
    assert condition_differences(paired) == "+15 points in rpc-sym (not significant)"
    both = pd.concat([paired, paired.assign(attention="tssa", value=-paired["value"])])
    assert condition_differences(both).endswith(" and −15 in tssa (not significant)")
    many = pd.concat([paired.assign(input=paired["input"] + 2 * copy) for copy in range(9)])
    assert "significant" not in condition_differences(many)


def test_attention_on_swapped_words_is_what_a_loop_over_queries_computes(classifier):
    passages = embedded_passages(classifier, 0.3, n=N)
    assert [*passages.inputs] == ["clean", "swapped"]
    new = passages.swapped
    characters = classifier.meta["preprocessing"]["characters"]
    letter = characters.index("A") + 2  # behind padding and unknown
    assert (passages.inputs["swapped"]["input_ids"][new] == letter).all()
    frame = attention_on_swapped([classifier], passages)
    assert set(frame["mechanism"]) == {"softmax-sym"}
    batch = passages.inputs["swapped"]
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
    for number, head in itertools.product(range(len(attn)), range(attn.shape[1])):
        real = int(batch.get("attention_mask", torch.ones_like(batch["input_ids"]))[number].sum())
        rows = []  # each query's weights in another order, of every input and head by itself, 400 times
        for query in range(real):
            keys = new[number, : query + 1].numpy()
            if keys.any() and not keys.all():
                weights = np.tile(attn[number, head, query, : query + 1].numpy(), (400, 1))
                rows.append(draw.permuted(weights, axis=1)[:, keys].sum(axis=1))
        drawn += [np.mean(rows, axis=0)] if rows else []
    drawn = np.mean(drawn, axis=0)
    assert mean["null_mean"] == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / 20)
    assert mean["null_high"] - mean["null_mean"] == pytest.approx(1.96 * np.std(drawn), rel=0.15)
