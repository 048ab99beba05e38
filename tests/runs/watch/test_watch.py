"""What is logged when, at which cost, and what happens when something goes wrong."""

import json
import warnings

import pandas as pd
import pytest
import torch
from torch import nn

import workbench
from tests.runs.watch.loops import gpt2, images, own_model, padded_texts, sequences, vit
from tests.together import run_together
from workbench.core.errors import InputError, UnknownName
from workbench.runs.watch import ANALYSES_WATCHED, core
from workbench.runs.watch.watch_folder import SUPERSEDED

SIMILARITY = {"token-similarity": {}}


def logged(folder, analysis="token-similarity"):
    return list(workbench.read_watch(folder, analysis).attrs["epochs"].values())


def notes(folder):
    return [entry["note"] for entry in json.loads((folder / "watch.json").read_text())["log"]]


def test_rows_are_those_that_analyze_gives(tmp_path):
    model = vit().train()
    watch = workbench.watch(model, images(), out=tmp_path, every=10, name="mine")
    assert watch.step(0)
    assert model.training
    for analysis, options in ANALYSES_WATCHED.items():
        alone = workbench.analyze(analysis, model=vit().eval(), inputs=images(), **options)
        frame = workbench.read_watch(tmp_path, analysis)
        assert set(frame["model"]) == {"mine"}
        assert set(frame["checkpoint"]) == {"step-000000000"}
        assert set(frame["step"]) == {0}
        labels = ["model", "checkpoint"]
        pd.testing.assert_frame_equal(frame.drop(columns=[*labels, "step"]), alone.drop(columns=labels))
        (run,) = frame.attrs["provenance"]
        assert run["analysis"] == analysis
        assert run["model"]["checkpoint"] == "step-000000000"
        assert len(run["inputs"]["sha256"]) == 64


def test_the_last_loggings_are_read_without_the_others(tmp_path):
    watch = workbench.watch(vit(), images(), out=tmp_path, every=1, max_cost=None, analyses=SIMILARITY)
    for step in range(4):
        watch.step(step)
    whole = workbench.read_watch(tmp_path, "token-similarity")
    for step in (0, 1):
        (tmp_path / "token-similarity" / f"step-00000000{step}.feather").write_bytes(b"damaged")
    last = workbench.read_watch(tmp_path, "token-similarity", last=2)
    assert [*last.attrs["epochs"].values()] == [*last["step"].unique()] == [2, 3]
    pd.testing.assert_frame_equal(last, whole[len(whole) // 2 :].reset_index(drop=True))
    assert [run["model"]["checkpoint"] for run in last.attrs["provenance"]] == [
        "step-000000002",
        "step-000000003",
    ]
    with pytest.raises(InputError, match=r"step-000000000\.feather is not a whole file"):
        workbench.read_watch(tmp_path, "token-similarity")


def test_padding_is_left_out(tmp_path):
    batch = padded_texts()
    changed = {**batch, "input_ids": torch.where(batch["attention_mask"] == 0, 3, batch["input_ids"])}
    for name, given in (("a", batch), ("b", changed)):
        workbench.watch(gpt2(), given, out=tmp_path / name, analyses=SIMILARITY).step(0)
    first, second = (workbench.read_watch(tmp_path / name, "token-similarity") for name in "ab")
    pd.testing.assert_frame_equal(first, second)


def test_the_batch_is_a_copy(tmp_path):
    batch = images()
    watch = workbench.watch(vit(), batch, out=tmp_path, every=1, max_cost=None, analyses=SIMILARITY)
    watch.step(0)
    batch.zero_()
    watch.step(1)
    values = workbench.read_watch(tmp_path, "token-similarity").groupby("checkpoint")["value"].sum()
    assert values.nunique() == 1


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (range(11), [0, 4, 8, 10]),
        ([None] * 6, [0, 4, 5]),
        ([3, 5, 9, 10, 13], [3, 5, 9, 13]),  # multiples of 4 are passed, not met
        ([0, 0, 4, 4, 4], [0, 4]),  # batches whose gradients are only gathered
    ],
)
def test_when_it_logs(calls, expected, tmp_path):
    watch = workbench.watch(vit(), images(), out=tmp_path, every=4, max_cost=None, analyses=SIMILARITY)
    rows = sum([watch.step(call) for call in calls])
    rows += watch.finish()
    assert not watch.finish()
    assert rows == len(expected)
    assert logged(tmp_path) == expected


class Clock:
    """A clock on which a step takes a second, and a logging three."""

    def __init__(self, monkeypatch, watch, cost):
        self.now = 0.0
        monkeypatch.setattr(core.time, "perf_counter", lambda: self.now)
        real = watch._analyse

        def analyse(*arguments):
            self.now += cost
            real(*arguments)

        monkeypatch.setattr(watch, "_analyse", analyse)


def test_the_cadence_is_stretched_to_keep_to_the_cost(tmp_path, monkeypatch):
    watch = workbench.watch(vit(), images(), out=tmp_path, every=10, max_cost=0.1, analyses=SIMILARITY)
    clock = Clock(monkeypatch, watch, cost=2.5)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for step in range(91):
            watch.step(step)
            clock.now += 1
    (warning,) = warned
    assert "every 30 steps instead of 10; max_cost=None keeps every" in str(warning.message)
    # 2.5 s are a tenth of 25 steps: every 30
    assert logged(tmp_path) == [0, 30, 60, 90]
    assert watch.cadence == 30
    assert watch.share <= 0.11
    (note,) = notes(tmp_path)
    assert "stretched from every 10 to every 30 steps" in note
    assert "2.5 s" in note
    assert "10.0%" in note


def test_a_cadence_that_is_cheap_stays_and_comes_back(tmp_path, monkeypatch):
    watch = workbench.watch(vit(), images(), out=tmp_path, every=10, max_cost=0.1, analyses=SIMILARITY)
    clock = Clock(monkeypatch, watch, cost=0.5)
    for step in range(31):
        watch.step(step)
        clock.now += 1
    assert logged(tmp_path) == [0, 10, 20, 30]
    watch.costs[:] = [9.0, 9.0, 9.0]
    for step in range(31, 240):
        watch.step(step)
        clock.now += 1
    assert logged(tmp_path) == [0, 10, 20, 30, 120, 210, 220, 230]
    assert watch.cadence == 10
    assert [note.split()[1] for note in notes(tmp_path)] == ["stretched", "shortened"]


def test_a_run_goes_on_in_its_folder(tmp_path):
    arguments = {"out": tmp_path, "every": 2, "max_cost": None, "analyses": SIMILARITY}
    first = workbench.watch(vit(), images(), **arguments)
    for step in range(6):
        first.step(step)
    lost = (tmp_path / "token-similarity" / "step-000000004.feather").read_bytes()
    (tmp_path / "token-similarity" / ".step-000000006.feather.x1").write_bytes(
        lost[:50]
    )  # killed while writing
    again = workbench.watch(vit(), images(), **arguments)
    for step in range(3, 8):  # from a checkpoint at step 3
        again.step(step)
    assert logged(tmp_path) == [0, 2, 3, 4, 6]  # the first call always logs
    assert (tmp_path / SUPERSEDED / "token-similarity" / "step-000000004.feather").read_bytes() == lost
    assert notes(tmp_path) == ["the run goes on; 1 files of this step and later ones, to 4, set aside"]
    workbench.watch(vit(), images(), **arguments).step(0)  # from the beginning, perhaps with other weights
    assert logged(tmp_path) == [0]


def test_the_folder_of_another_run_is_refused(tmp_path):
    workbench.watch(vit(), images(), out=tmp_path)
    with pytest.raises(InputError, match=r"with other settings \(inputs: "):
        workbench.watch(vit(), images(3), out=tmp_path)
    with pytest.raises(InputError, match=r"with other settings \(analyses: "):
        workbench.watch(vit(), images(), out=tmp_path, analyses=SIMILARITY)
    with pytest.raises(InputError, match=r"with other settings \(shapes: "):
        workbench.watch(vit(reg_tokens=1), images(), out=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        workbench.watch(vit(), images(), out=tmp_path / "file")


def test_beginning_anew_moves_the_old_folder_aside(tmp_path):
    out = tmp_path / "watch"
    workbench.watch(vit(), images(), out=out, analyses=SIMILARITY).step(0)
    workbench.watch(vit(), images(3), out=out, analyses=SIMILARITY, restart=True).step(0)
    assert workbench.read_watch(out, "token-similarity")["input"].nunique() == 3
    before = workbench.read_watch(tmp_path / "watch.before-1", "token-similarity")
    assert before["input"].nunique() == len(images())


@pytest.mark.parametrize("step", ["x", "7", 1.5, float("nan"), -3, [1]])
def test_what_is_no_number_of_a_step_is_said_at_once(tmp_path, step):
    watch = workbench.watch(vit(), images(), out=tmp_path)
    with pytest.raises(InputError, match="step must be a whole number from 0 up; got"):
        watch.step(step)


def test_what_cannot_be_watched_is_said_at_once(tmp_path):
    with pytest.raises(InputError, match="batch must be"):
        workbench.watch(vit(), [images()], out=tmp_path)
    with pytest.raises(InputError, match=r"torch\.nn\.Module"):
        workbench.watch("bundled:digits-vit", images(), out=tmp_path)
    with pytest.raises(InputError, match="every must be"):
        workbench.watch(vit(), images(), out=tmp_path, every=0)
    for share in (3, True):
        with pytest.raises(InputError, match="max_cost"):
            workbench.watch(vit(), images(), out=tmp_path, max_cost=share)
    with pytest.raises(InputError, match="seed must be a whole number from 0 to 4,294,967,295; got 'x'"):
        workbench.watch(vit(), images(), out=tmp_path, seed="x")
    with pytest.raises(InputError, match="analyses is empty"):
        workbench.watch(vit(), images(), out=tmp_path, analyses=[])
    with pytest.raises(UnknownName, match="did you mean 'gram-spectrum'"):
        workbench.watch(vit(), images(), out=tmp_path, analyses=["gram-spectra"])
    for layers in ("99", [0, 99], -99):
        with pytest.raises(InputError, match=r"there is no layer -?99: layers are 0 to"):
            workbench.watch(vit(), images(), out=tmp_path, layers=layers)
    model = vit()
    model.head.weight.ds_id = 3  # what DeepSpeed's ZeRO-3 puts on weights that it spreads
    with pytest.raises(InputError, match="spread over processes"):
        workbench.watch(model, images(), out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_noted_once_and_training_goes_on(tmp_path):
    model = vit()
    analyses = {"token-similarity": {}, "robust-components": {}}  # nothing for the second in this model
    watch = workbench.watch(model, images(), out=tmp_path, every=1, max_cost=None, analyses=analyses)
    with pytest.warns(RuntimeWarning, match="robust-components failed: NothingToMeasure") as caught:
        numbers = [watch.step(step) for step in range(6)]
    assert all(numbers)
    assert [one.category for one in caught].count(RuntimeWarning) == 2
    first, last = notes(tmp_path)
    assert first.startswith("robust-components failed")
    assert last.endswith("not tried again after 3 in a row")
    assert logged(tmp_path) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(InputError, match="holds no robust-components yet; step 0: robust-components failed"):
        workbench.read_watch(tmp_path, "robust-components")


# as a user may set, and then what is noted with a warning would be raised
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_warnings_that_are_errors_do_not_end_a_training(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4 * 6, 3))
    watch = workbench.watch(model, sequences(), out=tmp_path, every=1, analyses=SIMILARITY)
    assert watch.step(0)
    assert "no attention was seen" in notes(tmp_path)[0]


def test_a_folder_that_is_gone_does_not_end_a_training(tmp_path):
    watch = workbench.watch(own_model(), sequences(), out=tmp_path / "a", every=1, analyses=SIMILARITY)
    (tmp_path / "a" / "watch.json").unlink()
    (tmp_path / "a").rmdir()
    (tmp_path / "a").write_text("in its place")
    with pytest.warns(RuntimeWarning, match="watch, step"):
        watch.step(0)


def test_a_diverged_model_is_noted(tmp_path):
    model = vit()
    with torch.no_grad():
        model.head.weight.fill_(torch.nan)
        model.blocks[0].attn.qkv.weight.fill_(torch.nan)
    watch = workbench.watch(model, images(), out=tmp_path, analyses=SIMILARITY)
    with pytest.warns(RuntimeWarning, match="NaN"):
        watch.step(0)


PROCESS = """
import os, sys
import torch
from tests.runs.watch.loops import own_model, same_bits, sequences
import workbench

rank, out = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", f"file://{out}/meeting", rank=rank, world_size=2)

def train(watched):
    model = torch.nn.parallel.DistributedDataParallel(own_model())  # its buffers are sent round in every forward
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(rank)
    watch = None
    if watched:
        watch = workbench.watch(model, sequences(), out=f"{out}/watch", every=1, max_cost=None,
                                analyses=["token-similarity"])
    for step in range(3):
        optimizer.zero_grad()
        model(sequences() + rank).square().mean().backward()
        optimizer.step()
        logged = watch is not None and watch.step(step)
        assert logged == (watched and rank == 0)
    return model.state_dict()

same_bits(train(True), train(False))
"""


def test_two_processes_that_train_together(tmp_path):
    run_together(PROCESS, [(rank, tmp_path) for rank in range(2)])
    assert logged(tmp_path / "watch") == [0, 1, 2]


def test_only_the_first_process_logs(tmp_path, monkeypatch):
    monkeypatch.setattr(core, "is_main_process", lambda: False)
    watch = workbench.watch(vit(), images(), out=tmp_path / "a", every=1)
    assert not watch.step(0)
    assert not watch.finish()
    assert not (tmp_path / "a").exists()


def test_reading_says_what_is_missing(tmp_path):
    with pytest.raises(InputError, match="no watch in"):
        workbench.read_watch(tmp_path)
    workbench.watch(vit(), images(), out=tmp_path, analyses=SIMILARITY)
    with pytest.raises(InputError, match="holds no token-similarity yet"):
        workbench.read_watch(tmp_path, "token-similarity")
    with pytest.raises(UnknownName, match="analysis in"):
        workbench.read_watch(tmp_path, "gram-spectrum")
    (tmp_path / "watch.json").write_text("[]")
    with pytest.raises(InputError, match="does not describe a watch"):
        workbench.read_watch(tmp_path)
