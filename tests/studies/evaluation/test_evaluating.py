"""Whole evaluations of small models: the frame, its intervals, its notes, and what is refused."""

import json
import math
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from workbench import load
from workbench.apps import cli
from workbench.core.errors import InputError, UnknownName
from workbench.data.pools import open_pool
from workbench.frames.metric import METRICS
from workbench.models.architectures import build
from workbench.models.checkpoints import write_checkpoint
from workbench.studies.evaluation import PROTOCOLS, evaluate
from workbench.studies.evaluation.perplexity import PROSE, open_texts
from workbench.studies.evaluation.pixel_models import PixelModel, open_images
from workbench.studies.evaluation.protocols import Request, corrupted, photograph_cuts
from workbench.studies.evaluation.robustness import DEAR, RUNS, _jobs, make_robustness_record
from workbench.studies.records import EVALUATION_COLUMNS, EVALUATIONS_FILE, RECORD_FILE, read_evaluation

MODEL, SYMMETRIC = "bundled:digits-vit", "bundled:digits-softmax-sym"
CHARACTERS = "\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,;:'-?!"


@pytest.fixture(scope="module")
def digits_vit():
    return load(MODEL)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """A file with an untrained character model."""
    options = {"name": "lm", "vocabulary": len(CHARACTERS) + 2, "context": 16, "embed_dim": 8, "depth": 1}
    architecture = {**options, "num_heads": 2}
    torch.manual_seed(0)
    meta = {"architecture": architecture, "preprocessing": {"characters": CHARACTERS, "context": 16}}
    path = tmp_path_factory.mktemp("lm") / "epoch-000.safetensors"
    write_checkpoint(path, build(architecture), meta)
    return f"file:{path}"


def test_pixels_are_what_the_model_sees_before_its_normalisation(digits_vit):
    from workbench import inputs
    from workbench.data.pools import DIGITS_MEAN, DIGITS_STD

    classifier, images = open_images(digits_vit, "bundled:digits", 6, 0)
    batch = inputs("bundled:digits", digits_vit, n=6, seed=0).batch
    assert 0 <= images.pixels.min() <= images.pixels.max() <= 1
    torch.testing.assert_close((images.pixels - DIGITS_MEAN) / DIGITS_STD, batch, atol=1e-5, rtol=0)
    torch.testing.assert_close(classifier.logits(images.pixels), digits_vit.module(batch), atol=1e-4, rtol=0)


def test_a_clean_evaluation_counts_what_a_loop_counts(digits_vit):
    started = time.perf_counter()
    frame = evaluate(digits_vit, n=30, seed=2)
    assert 0 <= frame.attrs["provenance"][0]["seconds"] <= time.perf_counter() - started + 0.01
    classifier, images = open_images(digits_vit, "bundled:digits", 30, 2)
    order = classifier.logits(images.pixels).argsort(1, descending=True)
    for top, metric in ((1, "accuracy_top1"), (5, "accuracy_top5")):
        right = [
            target in row[:top] for target, row in zip(images.targets.tolist(), order.tolist(), strict=True)
        ]
        row = frame[frame["metric"] == metric].iloc[0]
        assert row["value"] == pytest.approx(np.mean(right))
        assert row["low"] <= row["value"] <= row["high"]
    assert list(frame.columns) == list(EVALUATION_COLUMNS)
    assert frame["n"].eq(30).all()
    origin = frame.attrs["provenance"][0]
    assert origin["model"]["sha256"] == digits_vit.fingerprint
    assert origin["inputs"]["sha256"] == images.identity["sha256"]


@pytest.mark.parametrize(
    "protocol", [name for name, held in PROTOCOLS.items() if held.images and held.budgets]
)
def test_a_budget_of_nothing_changes_nothing(digits_vit, protocol):
    clean = evaluate(digits_vit, n=8)
    attacked = evaluate(digits_vit, protocol, n=8, epsilons=[0])
    assert attacked["value"].tolist() == clean["value"].tolist()
    assert attacked["epsilon"].eq(0).all()


def test_images_made_against_a_model_itself_are_those_of_its_own_attack(digits_vit):
    asked = {"epsilons": [0.0, 0.04], "n": 12}
    settings = {"steps": 4, "source": digits_vit.spec}
    own = evaluate(digits_vit, "transfer", settings=settings, **asked)
    white = evaluate(digits_vit, "pgd", settings={"steps": 4}, **asked)
    columns = ["epsilon", "metric", "value"]
    pd.testing.assert_frame_equal(own[columns], white[columns])
    other = evaluate("bundled:digits-rpc-sym", "transfer", settings=settings, **asked)
    # less harm than to the model that they were made against
    assert other["value"].iloc[-2] > white["value"].iloc[-2]


def test_attacked_accuracy_falls_from_clean_to_nothing(digits_vit):
    frame = evaluate(digits_vit, "fgsm", n=25, epsilons=[0, 0.03, 0.1])
    first, _, last = frame.loc[frame["metric"] == "accuracy_top1", "value"]
    assert first > 0.9
    assert last < 0.3


def test_corruption_errors_are_means_over_severities_and_relative_to_the_reference(digits_vit):
    frame = evaluate(digits_vit, "corruptions", n=6, reference=digits_vit)
    top1 = frame[frame["metric"] == "accuracy_top1"]
    assert set(top1["severity"]) == {1, 2, 3, 4, 5}
    errors = frame[frame["metric"] == "corruption_error"].set_index("kind")["value"]
    by_kind = 1 - top1.groupby("kind")["value"].mean()
    for kind, value in by_kind.items():
        assert errors[kind] == pytest.approx(value)
    overall = frame[(frame["metric"] == "corruption_error") & frame["kind"].isna()]["value"].item()
    assert overall == pytest.approx(by_kind.mean())
    assert frame.loc[frame["metric"] == "mCE", "value"].item() == pytest.approx(1)
    assert all("makes no error there" in note for note in frame.attrs["notes"])


def test_larger_images_undergo_snow_and_frost_too(digits_vit, tmp_path):
    options = {"name": "vit", "img_size": 64, "patch_size": 16, "in_chans": 1, "num_classes": 10}
    architecture = {**options, "embed_dim": 12, "depth": 1, "num_heads": 2}
    means = {"size": [64, 64], "channels": 1, "resize": 64, "mean": [0.3], "std": [0.3]}
    path = tmp_path / "epoch-000.safetensors"
    write_checkpoint(path, build(architecture), {"architecture": architecture, "preprocessing": means})
    frame = evaluate(f"file:{path}", "corruptions", "bundled:digits", n=1, reference=digits_vit)
    small = evaluate(digits_vit, "corruptions", n=1)
    kinds, fewer = set(frame["kind"].dropna()), set(small["kind"].dropna())
    assert kinds - fewer == {"snow", "frost"}
    assert len(fewer) == 13
    assert any("mCE leaves out frost, snow: the images of" in note for note in frame.attrs["notes"])


def test_an_image_is_corrupted_the_same_way_whatever_the_others(digits_vit):
    from dataclasses import replace

    _, images = open_images(digits_vit, "bundled:digits", 4, 0)
    one = replace(images, pixels=images.pixels[2:3], targets=images.targets[2:3], ids=images.ids[2:3])
    for name in ("gaussian-noise", "motion-blur"):
        assert torch.equal(corrupted(images, name, 4, seed=1)[2:3], corrupted(one, name, 4, seed=1))


def test_ood_images_have_the_models_size(digits_vit):
    frame = evaluate(digits_vit, "ood", n=9)
    assert frame["kind"].tolist() == ["inverted", "photographs", "noise"]
    assert frame["value"].between(0, 1).all()
    cuts = photograph_cuts(3, 3, (7, 9), seed=4)
    assert cuts.shape == (3, 3, 7, 9)
    assert torch.equal(cuts, photograph_cuts(3, 3, (7, 9), seed=4))


def test_a_model_of_photographs_is_evaluated_on_its_tasks_test_images(tmp_path):
    from workbench.studies.training.tasks import load_task

    options = {"name": "vit", "img_size": 8, "patch_size": 4, "in_chans": 3, "num_classes": 18}
    architecture = {**options, "embed_dim": 12, "depth": 1, "num_heads": 2}
    torch.manual_seed(0)
    made = build(architecture)
    task = load_task("photos", architecture={"img_size": 8})
    meta = {"architecture": architecture, "preprocessing": task.preprocessing, "task": "photos"}
    path = tmp_path / "epoch-000.safetensors"
    write_checkpoint(path, made, meta)
    frame = evaluate(f"file:{path}", n=40)
    assert frame["inputs"].eq("task:photos").all()
    order = np.random.default_rng(0).permutation(len(task.test))[:40]
    with torch.no_grad():
        right = [made.eval()(task.test[i][0][None]).argmax() == task.test[i][1] for i in order.tolist()]
    assert frame["value"].iloc[0] == pytest.approx(np.mean(right))
    with pytest.raises(InputError, match="square colour images"):
        evaluate(MODEL, inputs="task:photos", n=2)
    few = {**meta, "architecture": {**architecture, "num_classes": 3}}
    write_checkpoint(path, build(few["architecture"]), few)
    with pytest.raises(InputError, match="knows classes 0 to 2"):
        evaluate(f"file:{path}", n=40)
    write_checkpoint(path, made, {**meta, "task": "images"})
    with pytest.raises(InputError, match="say with inputs"):
        evaluate(f"file:{path}", n=2)


def test_perplexity_of_swapped_words(language_model):
    frame = evaluate(language_model, "word-swap", n=2, epsilons=[0, 0.5])
    whole = frame[frame["metric"] == "perplexity"].set_index("epsilon")
    kept = frame[frame["metric"] == "perplexity_kept"].set_index("epsilon")
    assert kept.loc[0.0, "value"] == pytest.approx(whole.loc[0.0, "value"])
    assert whole.loc[0.5, "value"] != whole.loc[0.0, "value"]
    assert ((whole["low"] <= whole["value"]) & (whole["value"] <= whole["high"])).all()
    clean = evaluate(language_model, n=2)
    assert clean["metric"].tolist() == ["perplexity"]
    assert clean["value"].item() == pytest.approx(whole.loc[0.0, "value"])
    assert pd.isna(clean["epsilon"].item())


def test_only_held_out_prose_is_evaluated(language_model):
    chosen = open_texts(load(language_model), PROSE, 40, seed=0)
    files = {label.split("/")[1].split(":")[0] for label in chosen.ids}
    assert files == set(chosen.identity["files"])
    assert len(files) == 3


def test_evaluations_are_read_back_as_they_were_written(digits_vit, tmp_path):
    frame = evaluate([digits_vit, digits_vit], "noise", n=5, epsilons=[0.1])
    assert len(frame) == 4
    frame.to_csv(tmp_path / "noise.csv", index=False)
    pd.testing.assert_frame_equal(read_evaluation(tmp_path / "noise.csv"), frame, check_exact=True)
    (tmp_path / "other.csv").write_text("metric,value\na,1\n")
    with pytest.raises(InputError, match="holds no evaluation"):
        read_evaluation(tmp_path / "other.csv")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"protocol": "pdg"}, "did you mean 'pgd'"),
        ({"protocol": "clean", "epsilons": [0.1]}, "has no budget"),
        ({"protocol": "fgsm", "epsilons": [-0.1]}, "from 0 to 1"),
        ({"protocol": "fgsm", "epsilons": [math.nan]}, "from 0 to 1"),
        ({"protocol": "fgsm", "epsilons": []}, "at least one epsilon"),
        ({"protocol": "pgd", "settings": {"step": 3}}, "did you mean 'steps'"),
        ({"protocol": "fgsm", "epsilons": [2]}, "a number from 0 to 1"),
        ({"protocol": "word-swap", "epsilons": [1.5]}, "a number from 0 to 1"),
        ({"protocol": "cw", "epsilons": [math.inf]}, "a number from 0 up"),
        ({"protocol": "pgd", "settings": {"steps": 0.5}}, "a whole number"),
        ({"protocol": "pgd", "settings": {"steps": 0}}, "a whole number from 1 up, got 0"),
        ({"protocol": "pgd", "settings": {"steps": True}}, "a whole number from 1 up"),
        ({"protocol": "pgd", "settings": {"step_size": math.nan}}, "a number above 0 to 2, got nan"),
        ({"protocol": "pgd", "settings": {"step_size": 0}}, "a number above 0 to 2"),
        ({"protocol": "pgd", "settings": {"step_size": "none"}}, "a number above 0 to 2"),
        ({"protocol": "spsa", "settings": {"samples": 0}}, "a whole number from 1 up"),
        ({"protocol": "autoattack", "settings": {"restarts": 0}}, "a whole number from 1 up"),
        ({"protocol": "clean", "settings": {"stride": 0}}, "a whole number from 1 up"),
        ({"protocol": "clean", "settings": {"window": -1}}, "a whole number from 0 up"),
        ({"protocol": "fgsm", "settings": {"steps": 2}}, "has no settings"),
        ({"protocol": "word-swap"}, "is for a language model"),
        ({"protocol": "clean", "reference": MODEL}, "belongs to protocol corruptions"),
        ({"protocol": "clean", "inputs": "bundled:photos", "n": 2}, "has no classes"),
    ],
)
def test_what_cannot_be_is_refused(digits_vit, arguments, said):
    with pytest.raises(InputError, match=said):
        evaluate(digits_vit, **arguments)


def test_what_is_out_of_range_is_refused_before_the_model_is_loaded():
    with pytest.raises(InputError, match="step_size of protocol 'pgd' is a number above 0 to 2, got nan"):
        evaluate("bundled:no-such-model", "pgd", settings={"step_size": math.nan})
    with pytest.raises(InputError, match="epsilon of protocol 'fgsm' is a number from 0 to 1"):
        evaluate("bundled:no-such-model", "fgsm", epsilons=[2])


def test_every_setting_accepts_its_default_and_no_nan():
    settings = [option for protocol in PROTOCOLS.values() for option in protocol.settings.values()]
    assert len(settings) > 8
    for option in settings:
        assert option.accept(option.default) == option.default
        text = isinstance(option.default, str)
        for wrong in (math.nan, math.inf, -1, None, *["none"] * (not text)):
            with pytest.raises(ValueError, match="text" if text else "number"):
                option.accept(wrong)


@pytest.mark.parametrize("protocol", ["clean", "noise", "fgsm"])
def test_weights_that_are_not_finite_end_an_evaluation(protocol):
    broken = load(MODEL)
    with torch.no_grad():
        for weight in broken.module.parameters():
            weight.fill_(math.nan)
    with pytest.raises(
        InputError, match=r"logits .* not finite \(nor are its weights, the first of them cls_token"
    ):
        evaluate(broken, protocol, n=3)


def test_the_first_layer_that_is_not_finite_is_named():
    broken = load(MODEL)
    with torch.no_grad():
        broken.module.blocks[2].mlp.fc1.weight.fill_(1e38)
    with pytest.raises(InputError, match=r"first layer whose output is not is blocks\.2\.mlp\.fc1\)"):
        evaluate(broken, n=3)
    assert not any(layer._forward_hooks for layer in broken.module.modules())


def test_a_language_model_that_is_not_finite_ends_an_evaluation(language_model):
    broken = load(language_model)
    with torch.no_grad():
        next(broken.module.parameters()).fill_(math.inf)
    with pytest.raises(InputError, match="log-likelihoods of the model are not finite"):
        evaluate(broken, n=1)


def test_random_weights_are_said_in_the_notes(digits_vit):
    untrained = load(MODEL, pretrained=False)
    (note,) = evaluate([untrained, digits_vit], n=3).attrs["notes"]
    assert note.startswith(f"{MODEL} has random weights")


@pytest.mark.parametrize("protocol", ["fgsm", "pgd", "cw"])
def test_an_attack_that_moves_nothing_says_so(protocol):
    flat = load(MODEL)
    with torch.no_grad():  # the same answer whatever the image: no gradient to follow
        flat.module.head.weight.zero_()
    frame = evaluate(flat, protocol, n=3, epsilons=[0, 0.5])
    (note,) = frame.attrs["notes"]
    assert note.startswith(f"{MODEL}: {protocol}: the attack moved none of the 3 images at ")
    assert not evaluate(MODEL, protocol, n=3, epsilons=[0]).attrs["notes"]


def test_models_that_do_not_fit_the_protocol_are_refused(language_model):
    with pytest.raises(InputError, match="is for an image classifier"):
        evaluate(language_model, "fgsm")
    with pytest.raises(InputError, match="a window of 17 is too long"):
        evaluate(language_model, settings={"window": 17}, n=2)
    with pytest.raises(InputError, match=r"the held-out part of .* is 68"):
        evaluate(language_model, n=4000)
    without_classes = PixelModel(torch.nn.Conv2d(1, 2, 3), (0.5,), (0.5,))
    with pytest.raises(InputError, match="not one logit per class"):
        without_classes.logits(torch.rand(2, 1, 4, 4))


def test_every_metric_of_an_evaluation_is_in_the_table():
    names = {
        "accuracy_top1",
        "accuracy_top5",
        "corruption_error",
        "mCE",
        "aupr",
        "perplexity",
        "perplexity_kept",
    }
    assert names <= set(METRICS)


# Command and record -----------------------------------------------------------------------------------------


def test_the_command_prints_and_writes(capsys, tmp_path):
    out = tmp_path / "noise.csv"
    asked = ["study", "evaluate", "-m", MODEL]
    arguments = [*asked, "--protocol", "noise", "--epsilon", "0, 0.3", "-n", "6", "-o", str(out)]
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    said = capsys.readouterr()
    assert left.value.code == 0, said.err
    assert "accuracy_top1" in said.out
    assert read_evaluation(out)["epsilon"].tolist() == [0, 0, 0.3, 0.3]
    with pytest.raises(SystemExit) as left:
        cli.main([*asked, "--protocol", "pgd", "--epsilon", "0", "-s", "stepz=3"])
    assert left.value.code == 2
    assert "steps" in capsys.readouterr().err


def test_the_commands_help_lists_every_protocol(capsys):
    with pytest.raises(SystemExit):
        cli.main(["study", "evaluate", "--help"])
    out = capsys.readouterr().out
    assert all(name in out for name in PROTOCOLS)


def test_a_record_holds_the_numbers_and_takes_up_finished_work(tmp_path, capsys):
    work, data = tmp_path / "work", tmp_path / "data"
    made = make_robustness_record([MODEL], ["clean", "ood"], data, work, limit=5)
    folder = data / "records" / "robustness"
    assert json.loads((folder / RECORD_FILE).read_text()) == json.loads(json.dumps(made))
    frame = read_evaluation(folder / EVALUATIONS_FILE)
    assert set(frame["protocol"]) == {"clean", "ood"}
    assert capsys.readouterr().err.count("\n") == 2
    again = make_robustness_record([MODEL], ["clean", "ood"], data, work, limit=5)
    assert again["files"] == made["files"]
    assert capsys.readouterr().err == ""  # nothing was measured again
    both = make_robustness_record([SYMMETRIC], ["clean"], data, work, limit=5)  # beside what is there
    assert list(both["models"]) == [MODEL, SYMMETRIC]
    assert list(both["seconds"]) == [f"{MODEL} clean", f"{MODEL} ood", f"{SYMMETRIC} clean"]
    beside = read_evaluation(folder / EVALUATIONS_FILE)
    assert list(beside["model"].unique()) == [SYMMETRIC, MODEL]
    pd.testing.assert_frame_equal(beside[beside["model"] == MODEL].reset_index(drop=True), frame)
    both["models"][MODEL]["sha256"] = "of other weights"
    (folder / RECORD_FILE).write_text(json.dumps(both))
    assert list(make_robustness_record([SYMMETRIC], ["clean"], data, work, limit=5)["models"]) == [SYMMETRIC]
    with pytest.raises(UnknownName, match="bundled model of digits or prose 'bundled:digits-none'"):
        make_robustness_record(["bundled:digits-none"], None, data, work)
    with pytest.raises(UnknownName, match="protocol"):
        make_robustness_record(None, ["clena"], data, work)


def test_the_dear_attacks_are_left_to_the_models_of_their_paper_unless_asked_for():
    every, asked = _jobs(None, None, None), _jobs(None, ["cw"], 7)
    models = {job.model for job in every if job.model.startswith("bundled:digits-")}
    for protocol in RUNS["image"]:
        wanted = set(DEAR.get(protocol, models)) & models
        assert {job.model for job in every if job.protocol == protocol} == wanted
    assert {job.model for job in asked} == models
    assert {(job.protocol, job.n) for job in asked} == {("cw", 7)}


def test_what_is_random_in_a_corruption_depends_on_seed_image_and_kind(monkeypatch):
    drawn = {}

    def corrupt(image, name, severity, rng):
        drawn.setdefault((name, severity), []).append(rng.random())
        return image

    monkeypatch.setattr("workbench.studies.evaluation.protocols.corrupt", corrupt)
    images = SimpleNamespace(pixels=torch.zeros(2, 1, 3, 3), ids=["a", "b"])
    for seed, name, severity in ((0, "fog", 1), (0, "fog", 2), (0, "snow", 1)):
        corrupted(images, name, severity, seed)
    once = drawn.copy()
    drawn.clear()
    corrupted(images, "fog", 1, seed=1)
    numbers = [*once["fog", 1], *once["snow", 1], *drawn["fog", 1]]
    assert len(set(numbers)) == 6
    assert once["fog", 2] == once["fog", 1]  # a stronger corruption is more of the same


def test_an_image_falls_once_the_nearest_misclassified_one_is_within_the_budget(monkeypatch):
    pixels = torch.zeros(4, 1, 2, 2)
    found = pixels + torch.tensor([0.0, 0.05, 0.1, 0.2]).view(4, 1, 1, 1)  # norms 0, 0.1, 0.2, 0.4
    monkeypatch.setattr(
        "workbench.studies.evaluation.attacks.carlini_wagner", lambda *given, **settings: found
    )
    model = SimpleNamespace(logits=lambda at: torch.stack([at.sum((1, 2, 3)), torch.full((4,), 1e-6)], 1))
    images = SimpleNamespace(pixels=pixels, targets=torch.ones(4, dtype=torch.long))
    request = Request((0.0, 0.15, 0.25, 0.5), 0, {})
    rows = [row for row in PROTOCOLS["cw"].images(model, images, request) if row["metric"] == "accuracy_top1"]
    assert [(row["epsilon"], row["value"]) for row in rows] == [
        (0.0, 1.0),
        (0.15, 0.75),
        (0.25, 0.5),
        (0.5, 0.25),
    ]


def test_perplexity_of_what_was_kept_is_that_of_its_own_tokens(monkeypatch):
    """The first token is predicted from nothing: the n-th likelihood is that of the token after it."""
    nll, kept = torch.tensor([0.1, 0.2, 0.4, 0.8]), torch.tensor([True, False, True, False, True])
    monkeypatch.setattr(
        "workbench.studies.evaluation.perplexity.encode", lambda *given: (torch.arange(5), kept)
    )
    monkeypatch.setattr("workbench.studies.evaluation.perplexity.sliding_nll", lambda *given: nll)
    model = SimpleNamespace(max_length=9, module=None, spec="m")
    request = Request((0.5,), 0, {"window": 0, "stride": 1})
    texts = SimpleNamespace(texts=["one two"], ids=["t"])
    values = {row["metric"]: row["value"] for row in PROTOCOLS["word-swap"].texts(model, texts, request)}
    assert values["perplexity"] == pytest.approx(math.exp(1.5 / 4))
    assert values["perplexity_kept"] == pytest.approx(math.exp((0.2 + 0.8) / 2))


def test_the_committed_record_has_the_numbers_of_inputs_of_the_plan():
    record = pd.read_csv(Path(__file__).parents[3] / "data" / "records" / "robustness" / "evaluations.csv")
    images = record[record["inputs"].eq("bundled:digits")]
    counts = images.groupby("protocol")["n"].unique().map(list).to_dict()
    assert counts == {protocol: [RUNS["image"][protocol]] for protocol in counts}
    assert {"clean", "pgd", "spsa", "square"} <= {*counts}
    assert RUNS["image"]["clean"] == len(open_pool("bundled:digits"))
