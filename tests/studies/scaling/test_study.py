"""The study: points measured in processes of their own, kept, gone on from, and ended with a reason."""

import json
import multiprocessing
import threading
import time

import pandas as pd
import pytest
import torch

from workbench.core.errors import InputError, UnknownName
from workbench.papers.operators import CONDITIONS, FORWARD
from workbench.studies.records import SCALING_COLUMNS
from workbench.studies.scaling import scaling_exponents, scaling_study, study

SMALL = {"sweeps": ["causal"], "operators": ["tssa-causal"]}


def test_points_are_really_measured_in_processes_of_their_own():
    frame = scaling_study(**SMALL, sizes=[33, 66])
    assert tuple(frame.columns) == SCALING_COLUMNS
    known = frame.set_index(["condition", "tokens", "metric"])["value"]
    assert len(known) == 2 * 2 * 4
    assert (known > 0).drop("device_memory", level="metric").all()
    assert known["forward", 66, "macs"] == 2 * known["forward", 33, "macs"]
    times = frame[frame["metric"] == "seconds_per_sample"]
    assert ((times["low"] <= times["value"]) & (times["value"] <= times["high"])).all()
    assert (times["passes"] >= 3).all()
    run = frame.attrs["provenance"]
    assert run["device"]
    assert run["memory"]
    assert (frame["threads"] == run["threads"]).all()


def test_the_smallest_sizes_of_all_curves_come_first(planted):
    scaling_study(["tokens"], operators=["softmax", "tssa"], sizes=[64, 16], conditions=[FORWARD])
    assert [asked[:2] for asked in planted.asked] == [
        ("softmax", 16), ("tssa", 16), ("softmax", 64), ("tssa", 64)
    ]  # fmt: skip


def test_what_is_kept_is_not_measured_again(planted, tmp_path):
    first = scaling_study(**SMALL, sizes=[16, 32, 64], out=tmp_path / "study")
    assert len(planted.asked) == 3
    planted.asked.clear()
    again = scaling_study(**SMALL, sizes=[16, 32, 64, 128], out=tmp_path / "study")
    assert planted.asked == [("tssa-causal", 128, CONDITIONS)]
    pd.testing.assert_frame_equal(again[again["tokens"] < 128].reset_index(drop=True), first.sort_index())
    fits = scaling_exponents(again).set_index(["condition", "metric", "source"])["value"]
    assert fits["forward", "time_exponent_tokens", "measured"] == pytest.approx(1)
    assert fits["forward", "memory_exponent_tokens", "measured"] == pytest.approx(1)


def test_another_condition_is_measured_beside_the_one_that_is_kept(planted, tmp_path):
    scaling_study(**SMALL, sizes=[16], conditions=[FORWARD], out=tmp_path)
    planted.asked.clear()
    for _ in range(2):
        scaling_study(**SMALL, sizes=[16], out=tmp_path)
    assert planted.asked == [("tssa-causal", 16, CONDITIONS[1:])]


def test_no_budget_measures_nothing_and_says_so(planted, tmp_path):
    frame = scaling_study(**SMALL, sizes=[16, 32], budget=0, out=tmp_path)
    assert frame.empty
    assert planted.asked == []
    assert frame.attrs["notes"] == ["2 of 2 points lie beyond the budget of 0 minutes"]


def test_what_is_kept_costs_no_budget(planted, tmp_path):
    first = scaling_study(**SMALL, sizes=[16], out=tmp_path)
    again = scaling_study(**SMALL, sizes=[16, 32], budget=0, out=tmp_path)
    pd.testing.assert_frame_equal(again, first)


def test_a_pass_that_would_take_too_long_ends_its_curve(planted):
    frame = scaling_study(
        ["tokens"], operators=["softmax", "tssa"], sizes=[1024, 16384, 65536], conditions=[FORWARD]
    )
    ends = frame[frame["ended"].notna()].set_index("operator")
    # softmax: 1 s at 1024 tokens grows with the counted operations; TSSA: with the tokens, to 16 and 65 s
    assert ends.loc["softmax", "tokens"] == 16384
    assert ends.loc["tssa", "tokens"] == 65536
    assert ends.loc["tssa", "ended"] == "about 66 s expected, 30 s allowed"
    assert ends["value"].isna().all()
    assert ("softmax", 65536, (FORWARD,)) not in planted.asked


def test_a_pass_that_would_not_fit_ends_its_curve_in_its_condition_alone(planted, monkeypatch):
    monkeypatch.setattr(study, "free_memory", lambda device: 300 * 2**20)
    frame = scaling_study(["tokens"], operators=["softmax-eager"], sizes=[64, 1024])
    ended = frame[frame["ended"].notna()]
    assert list(ended["condition"]) == ["forward + backward"]
    assert ended["ended"].iloc[0].startswith("would need 0.")
    assert ended["ended"].iloc[0].endswith("of 0.2 GiB")
    assert set(frame.loc[frame["condition"] == FORWARD, "tokens"]) == {64, 1024}


def test_a_process_that_dies_ends_the_curve_and_the_next_point_has_another(monkeypatch):
    monkeypatch.setattr(study, "measured", _dying(study.measured))
    frame = scaling_study(["causal"], sizes=[16], conditions=[FORWARD])
    ended = frame[frame["ended"].notna()]
    assert list(ended["operator"]) == ["softmax-causal"]
    assert "killed" in ended["ended"].iloc[0]
    assert set(frame.loc[frame["metric"] == "macs", "operator"]) == {"softmax-eager-causal", "tssa-causal"}


def _dying(measured):
    """The first process is killed as soon as it runs."""
    alive = []

    def measure(*asked):
        if not alive:
            before = set(multiprocessing.active_children())  # joblib's, left by other tests, are among them
            killer = threading.Thread(target=lambda: alive.append(_kill_the_next(before)))
            killer.start()
            found = measured(*asked)
            killer.join()
            return found
        return measured(*asked)

    return measure


def _kill_the_next(before):
    while not (children := set(multiprocessing.active_children()) - before):
        time.sleep(0.001)
    child = children.pop()
    child.kill()
    return child


def test_a_folder_of_another_study_is_refused(planted, tmp_path):
    scaling_study(**SMALL, sizes=[16], out=tmp_path)
    with pytest.raises(InputError, match='dtype: "float32" there, "bfloat16" asked for'):
        scaling_study(**SMALL, sizes=[16], dtype="bfloat16", out=tmp_path)
    held = json.loads((tmp_path / study.IDENTITY_FILE).read_text())
    assert held == {"format": 2, **study.study_identity("cpu", "float32")}


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "photo.png").touch()
    with pytest.raises(InputError, match=r"no study\.json"):
        scaling_study(**SMALL, out=tmp_path)


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"sweeps": ["token"]}, UnknownName, "tokens"),
        ({"operators": ["tsa"]}, UnknownName, "tssa"),
        ({"conditions": ["backward"]}, UnknownName, "forward"),
        ({"dtype": "float8"}, UnknownName, "float32"),
        ({"sizes": [0]}, InputError, "positive"),
        ({"budget": -1.0}, InputError, "minutes"),
        ({"device": "tpu"}, InputError, "tpu"),
        ({"sweeps": ["causal"], "operators": ["xca"]}, InputError, "causal"),
    ],
)
def test_what_cannot_be_measured_is_said_at_once(changed, error, words):
    with pytest.raises(error, match=words):
        scaling_study(**changed)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_memory_is_the_allocators():
    frame = scaling_study(**SMALL, sizes=[64, 128], conditions=[FORWARD], device="cuda")
    known = frame.set_index(["tokens", "metric"])["value"]
    for tokens in (64, 128):
        ratio = known[tokens, "device_memory"] / known[tokens, "peak_memory"]
        assert 0.5 < ratio < 2
