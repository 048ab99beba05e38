"""Alerts: which values of a logging meet a condition, once each, and what follows."""

import json
import sys
import warnings
from types import ModuleType

import pandas as pd
import pytest
import torch

import workbench
from tests.runs.watch.loops import CLASSES, images, vit
from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.frames.results import conform
from workbench.runs.watch import Alert, scalars
from workbench.runs.watch.alerts import Condition, alerts_of

ENTROPY = "attention_entropy_share"


def rows(values):
    """A frame of one metric from {(layer, head, input): value}."""
    return conform(
        pd.DataFrame(
            {"model": "m", "metric": ENTROPY, "layer": layer, "head": head, "input": name, "value": value}
            for (layer, head, name), value in values.items()
        )
    )


@pytest.mark.parametrize(
    ("text", "met"),
    [("< 0.5", [True, False, False]), ("<= 0.5", [True, True, False]), ("> 5e-1", [False, False, True]),
     (">=0.5", [False, True, True])],
)  # fmt: skip
def test_a_condition_compares_with_its_number_and_nan_never_meets_it(text, met):
    condition = Condition.parse("m", text)
    assert [condition.met(value) for value in (0.25, 0.5, 0.75, float("nan"))] == [*met, False]


def test_an_alert_is_of_the_mean_over_inputs_of_one_head():
    frame = rows({(0, 0, "a"): 0.1, (0, 0, "b"): 0.4, (2, 1, "a"): 0.0, (2, 1, "b"): 0.1, (2, 0, "a"): 0.9})
    found = alerts_of(frame, {ENTROPY: Condition("<", 0.2)}, step=7)
    assert [(alert.where, alert.step) for alert in found] == [("layer 2, head 1", 7)]
    assert found[0].value == pytest.approx(0.05)
    assert str(found[0]) == f"{ENTROPY} < 0.2 in layer 2, head 1 (0.05)"


def test_scalars_of_another_frame_are_refused():
    with pytest.raises(InputError, match="no column metric, layer, value, source"):
        scalars(pd.DataFrame({"x": [1]}))


def test_scalars_are_means_over_inputs_and_heads_of_a_layer_and_kinds_stay_apart():
    frame = rows({(0, 0, "a"): 1.0, (0, 1, "a"): 2.0, (1, 0, "a"): 5.0, (1, 0, "b"): 9.0})
    assert scalars(frame) == {f"{ENTROPY}/layer 0": 1.5, f"{ENTROPY}/layer 1": 7.0}
    kinds = pd.concat([frame.assign(candidate="x"), frame.assign(candidate="y", value=-frame["value"])])
    assert scalars(kinds)[f"{ENTROPY}/layer 1, y"] == -7.0


def test_a_condition_is_told_when_it_is_newly_met_and_its_analysis_is_watched(tmp_path):
    told = []
    watch = workbench.watch(
        vit(), images(), out=tmp_path, every=1, max_cost=None, analyses=["token-similarity"],
        alert={ENTROPY: "> 0"}, on_alert=told.append,
    )  # fmt: skip
    for step in range(3):
        watch.step(step)
    assert {alert.where for alert in told} == {
        f"layer {layer}, head {head}" for layer in (0, 1) for head in (0, 1)
    }
    assert [alert.step for alert in told] == [0] * 4
    assert all(isinstance(alert, Alert) and 0 < alert.value <= 1 for alert in told)
    assert not watch.stopped
    log = json.loads((tmp_path / "watch.json").read_text())["log"]
    assert [entry["note"] for entry in log] == [f"alert: {alert}" for alert in told]
    assert {*workbench.read_watch(tmp_path, "attention-map")["metric"]} >= {ENTROPY}


def test_stop_warns_and_is_read_by_the_loop(tmp_path):
    watch = workbench.watch(
        vit(),
        images(),
        out=tmp_path,
        analyses=["token-similarity"],
        alert={"token_cosine": "< 2"},
        on_alert="stop",
    )
    with pytest.warns(RuntimeWarning, match=r"step 0: token_cosine < 2 in layer 0"):
        watch.step(0)
    assert watch.stopped


def test_a_trainer_ends_after_the_step_at_which_a_condition_is_met(tmp_path):
    import transformers

    from workbench.runs.watch import HuggingFaceCallback

    model = vit()

    class Classified(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, pixels, labels):
            logits = self.net(pixels)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    data = [{"pixels": image, "labels": number % CLASSES} for number, image in enumerate(images(6))]
    callback = HuggingFaceCallback(
        images(2), submodule="net", every=2, max_cost=None, analyses=["token-similarity"],
        alert={"token_cosine": "<= 1"}, on_alert="stop",
    )  # fmt: skip
    trainer = transformers.Trainer(
        Classified(),
        transformers.TrainingArguments(
            tmp_path, max_steps=5, report_to=[], use_cpu=True, per_device_train_batch_size=3,
            remove_unused_columns=False,
        ),
        train_dataset=data,
        callbacks=[callback],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        trainer.train()
    assert trainer.state.global_step == 1


def test_rows_go_to_a_tracker_as_they_are_written(tmp_path):
    sent = []
    watch = workbench.watch(
        vit(), images(), out=tmp_path, every=2, max_cost=None, analyses=["token-similarity"],
        on_rows=lambda frame, step: sent.append((step, scalars(frame))),
    )  # fmt: skip
    for step in range(3):
        watch.step(step)
    assert [step for step, _ in sent] == [0, 2]
    frame = workbench.read_watch(tmp_path, "token-similarity")
    last = frame[frame["checkpoint"] == "step-000000002"]
    assert sent[1][1] == scalars(last)


def test_a_tracker_that_fails_does_not_end_the_training(tmp_path):
    def broken(frame, step):
        raise OSError("no network")

    watch = workbench.watch(vit(), images(), out=tmp_path, analyses=["token-similarity"], on_rows=broken)
    with pytest.warns(RuntimeWarning, match="no network"):
        watch.step(0)
    assert len(workbench.read_watch(tmp_path, "token-similarity"))


@pytest.mark.parametrize("text", ["0.05", "< much", "= 1", "< inf", 0.05])
def test_another_condition_is_refused(tmp_path, text):
    with pytest.raises(InputError, match=r"comparison|alert"):
        workbench.watch(vit(), images(), out=tmp_path, alert={ENTROPY: text})


def test_an_unknown_metric_and_one_of_no_analysis_are_refused(tmp_path):
    with pytest.raises(UnknownName, match="attention_entropy"):
        workbench.watch(vit(), images(), out=tmp_path, alert={"attention_entropi": "< 1"})
    with pytest.raises(InputError, match="no analysis measures 'perplexity'"):
        workbench.watch(vit(), images(), out=tmp_path, alert={"perplexity": "< 1"})
    with pytest.raises(InputError, match="on_alert"):
        workbench.watch(vit(), images(), out=tmp_path, alert={ENTROPY: "< 1"}, on_alert="halt")
    assert not (tmp_path / "watch.json").exists()


def test_metrics_are_watched_by_name_and_without_null_samples(tmp_path):
    watch = workbench.watch(vit(), images(), out=tmp_path, metrics=["max_logit", "sink_rate"])
    watch.step(0)
    assert [*watch.identity["analyses"]] == ["saturation", "sinks"]
    frame = workbench.read_watch(tmp_path, "saturation")
    assert {*frame["metric"]} == {"max_logit"}
    assert frame["null_mean"].isna().all()
    with pytest.raises(UnknownName, match="max_logits"):
        workbench.watch(vit(), images(), out=tmp_path / "other", metrics=["max_logits"])
    with pytest.raises(InputError, match="metrics: no analysis measures 'perplexity'"):
        workbench.watch(vit(), images(), out=tmp_path / "other", metrics="perplexity")


class Writer:
    """A summary writer of TensorBoard, and a run of Weights & Biases, that keep what they get."""

    def __init__(self, folder=""):
        self.folder, self.values, self.flushes = folder, {}, 0
        type(self).last = self

    def add_scalar(self, label, value, step):
        self.values[label, step] = value

    def flush(self):
        self.flushes += 1

    def log(self, values, commit):
        assert not commit  # the step belongs to the training
        step = values.pop("watch_step")
        self.values |= {(label, step): value for label, value in values.items()}


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_tracker_gets_the_means_of_every_logging(tmp_path, monkeypatch, tracker):
    tensorboard, wandb = ModuleType("torch.utils.tensorboard"), ModuleType("wandb")
    tensorboard.SummaryWriter, wandb.run, wandb.init = Writer, None, lambda dir: Writer(dir)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    watch = workbench.watch(
        vit(), images(), out=tmp_path, every=1, max_cost=None, metrics=["max_logit"], report_to=tracker
    )
    watch.step(0)
    wandb.run = Writer.last
    watch.step(1)
    assert Writer.last.folder == str(tmp_path / "tensorboard" if tracker == "tensorboard" else tmp_path)
    frame = workbench.read_watch(tmp_path, "saturation")
    for step in (0, 1):
        rows = frame[frame["checkpoint"] == f"step-00000000{step}"]
        for label, value in scalars(rows).items():
            assert Writer.last.values[label, step] == value


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_is_named(tmp_path, monkeypatch, tracker):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        MissingResource, match=f"report_to='{tracker}' needs {tracker}; pip install {tracker}"
    ):
        workbench.watch(vit(), images(), out=tmp_path, report_to=tracker)
