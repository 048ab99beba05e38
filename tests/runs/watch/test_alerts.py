"""Alerts: which values of a logging meet a condition, once each, and what follows."""

import json
import warnings

import pandas as pd
import pytest
import torch

import workbench
from tests.runs.watch.loops import CLASSES, images, vit
from workbench.core.errors import InputError, UnknownName
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
