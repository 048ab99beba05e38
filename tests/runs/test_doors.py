"""Public functions refuse values of the wrong kind before they do anything: an `InputError` in three parts."""

import inspect
import math
import re

import numpy as np
import pandas as pd
import pytest
import torch

import workbench
from workbench.captures import Capture
from workbench.core.errors import InputError
from workbench.runs.settings import RunSettings
from workbench.runs.sweep import read_sweep, sweep, sweep_status
from workbench.runs.watch import scalars
from workbench.studies.training import train

WHOLE = [True, math.nan, math.inf, "x", "", 1.5, -1, [], {}, object()]
COUNT = [*WHOLE, 0]
NUMBER = [True, math.nan, math.inf, "x", -1.0, []]
FLAG = ["yes", 1, 0.0, [], object()]
TEXT = [True, 5, 1.5, math.nan, [], object()]
NUMBERS = [True, math.nan, math.inf, 1.5, "x", "", [], [True], [0.5], ["0"], object()]
SEVERAL = [True, 5, math.nan, {1: 2}, [5], object()]
WRONG = {
    "n": COUNT, "seed": [*WHOLE, None, 2**32], "layers": NUMBERS, "heads": NUMBERS, "steps": NUMBERS,
    "order": [*TEXT, "rows"], "preprocessing": [*TEXT, "none"], "batch_size": [*COUNT, None],
    "device": TEXT, "dtype": TEXT, "name": TEXT, "per": [*TEXT, "head"], "progress": FLAG, "cache": FLAG,
    "restart": [*FLAG, None], "per_input": [*FLAG, None], "allow_partial": [*FLAG, None], "generate": COUNT,
    "part": [5, True, "x", "0/2"],
    "workers": [*COUNT, None], "shards": COUNT, "backend": TEXT, "scheduler": TEXT, "max_time": [*NUMBER, 0],
    "alert": [5, "x", True], "on_alert": [5, True, "halt"], "on_rows": [5, "x", True],
    "metrics": [5, True, [5], None], "report_to": TEXT,
    "every": [*COUNT, None], "max_cost": [*NUMBER, 0, 1.5], "tolerance": [*NUMBER, None], "epochs": COUNT,
    "limit": COUNT, "null_samples": [*WHOLE, 1, None], "untrained": [*WHOLE, None], "boost": FLAG, "shuffled": FLAG,
    "out": [True, 5, None, []], "folder": [True, 5, None], "path": [True, 5, None, []],
    "models": SEVERAL, "analyses": SEVERAL, "analysis": TEXT, "qkv": [True, 5, []], "last": COUNT,
    "frame": [5, "x", None, [1]], "a": [5, "x", None], "b": [5, "x", None], "sites": [5, True, [5]],
    "task": TEXT, "attention": TEXT, "options": [5, "x", []], "data": [5, True], "recipe": [5, True],
    "site": TEXT, "tokens": [True, 5, "x", [0.5]], "normalise": FLAG, "kv": FLAG,
    "capture": [5, "x", None], "query": [True, 1.5, [], None], "key": [True, 1.5, [], None],
    "input": [True, 1.5, "x", None],
    "start": [5, True], "paper": TEXT, "table": [True, 1.5, None, []], "runs": [5, True],
    "grid": [5, "x", []], "checkpoints": [5, True],
}  # fmt: skip
"""By name of an argument, values that no function takes for it."""
FREE = {"model", "inputs", "batch", "run", "changes"}
"""Arguments that `load`, `inputs`, `capture` and `intervene` check themselves, or that are called."""
PAIR = ("bundled:digits-vit", "bundled:digits")
CAPTURE = Capture([], ())
FRAME = pd.DataFrame({"metric": []})
DOORS = {
    workbench.analyze: ("gram-spectrum", *PAIR),
    workbench.analyze_many: ("gram-spectrum", [PAIR]),
    workbench.analyze_grid: ("gram-spectrum", [PAIR], {"max_rank": [2]}),
    workbench.analyze_steps: ("gram-spectrum", torch.nn.Linear(2, 2), lambda: None),
    workbench.runs.loop.capture_inputs: PAIR,
    sweep: (*PAIR, "gram-spectrum", "OUT"),
    sweep_status: ("OUT",),
    read_sweep: ("OUT",),
    workbench.watch: (torch.nn.Linear(2, 2), torch.ones(2, 2)),
    workbench.read_watch: ("OUT",),
    workbench.claims: (),
    workbench.table: ("saritas2025", 1, "bundled:digits-vit"),
    workbench.compare: (CAPTURE, CAPTURE),
    workbench.intervene: (torch.nn.Linear(2, 2), {(0, 0): "zero"}),
    workbench.find_link: (CAPTURE, 0, 1),
    workbench.read_frame: ("OUT",),
    workbench.write_frame: (FRAME, "OUT"),
    scalars: (FRAME,),
    train: ("digits", "OUT"),
}
"""Functions, each with its required arguments."""


def arguments():
    for door, required in DOORS.items():
        names = [
            name
            for name, parameter in inspect.signature(door).parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD and name not in FREE
        ]
        yield from (pytest.param(door, required, name, id=f"{door.__name__}-{name}") for name in names)


@pytest.mark.parametrize(("door", "required", "name"), [*arguments()])
def test_a_value_of_the_wrong_kind_is_refused_in_three_parts(door, required, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    signature = inspect.signature(door)
    taken = signature.bind_partial(*required).arguments
    if "out" in signature.parameters:
        taken["out"] = "OUT"
    for value in WRONG[name]:
        with pytest.raises(InputError) as refused:
            door(**taken | {name: value})
        message = str(refused.value)
        assert name.removesuffix("s") in message, (value, message)  # the argument
        assert re.search(
            r"must be|choose from|did you mean|write|neither|name at least|give a number", message
        ), (
            value,
            message,
        )
        shown = repr(value[0]) if isinstance(value, list) and value else repr(value)
        assert shown[:40] in message or value in ([], {}, ""), (value, message)
    assert not [*tmp_path.iterdir()]


def test_settings_refuse_what_functions_refuse():
    for name in [*RunSettings.__dataclass_fields__][2:]:
        for value in WRONG[name]:
            with pytest.raises(InputError, match=name.removesuffix("s")):
                RunSettings(**{name: value})


def test_numbers_of_numpy_and_torch_are_numbers():
    settings = RunSettings(seed=np.int64(3), n=np.int32(2), layers=np.arange(2), batch_size=np.uint8(4))
    assert settings == RunSettings(seed=3, n=2, layers="0,1", batch_size=4)
    assert RunSettings(device=torch.device("cpu"), dtype=torch.float64).recorded()["device"] == "cpu"


def test_a_path_in_the_home_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    frame = workbench.analyze("gram-spectrum", *PAIR, n=1, max_rank=1)
    assert workbench.write_frame(frame, "~/figs/rows.csv") == tmp_path / "figs" / "rows.csv"
    assert len(workbench.read_frame("~/figs/rows.csv")) == len(frame)
