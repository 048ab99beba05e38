"""What an editor reads of the functions that take the options of an analysis is current, and wrong options show."""

import re
import subprocess
import sys

import pytest

from tests.stubs import class_of, entries, stubs, written
from workbench.core.options import options_of

RIGHT = """
from typing import Any

import torch
import workbench

model = workbench.load("bundled:digits-vit")
workbench.analyze("gram-spectrum", "bundled:digits-vit", "bundled:digits", n=3, max_rank="all", per_input=True)
workbench.analyze("gram-spectrum", model, torch.ones(2, 3), max_rank=4, layers=[0, 1], heads="0", method="tiled")
workbench.analyze("attention-map", qkv="a.npz", per="pair", query=0)
workbench.analyze("subspaces", model=model, null_samples=4)
workbench.analyze("value-similarity", model, "bundled:digits", null="a null of a plug-in")
workbench.analyze_many("token-similarity", [("a", "b")], n="all", rate="fit")


def several(name: str, options: dict[str, Any]) -> None:
    workbench.analyze(name, "a", "b", n=3)
    workbench.analyze(name, "a", "b", **options)
    workbench.analyze("gram-spectrum", "a", "b", **options)
"""
WRONG = """
import workbench

workbench.analyze("gram-spectrum", "a", "b", max_rnk=3)
workbench.analyze("gram-spectrum", "a", "b", max_rank="some")
workbench.analyze("gram-spectrum", "a", "b", layer=3)
workbench.analyze("gram-spectrum", "a", "b", radius=3.0)
workbench.analyze("attention-map", "a", "b", per="pair", null_samples=3)
workbench.analyze("gram-spectrum", "a", "b", preprocessing="mine")
workbench.analyze("filter-kernels", "a", "b", method="tiled")
workbench.analyze_many("gram-spectrum", [("a", "b")], max_rnk=3)
workbench.analyze_grid("gram-spectrum", [("a", "b")], {}, n="some")
workbench.sweep("a", "b", "gram-spectrum", "out", layer=3)
workbench.watch(workbench.load("a").module, {}, out="out", layer=3)
workbench.claims("teo2024", sed=3)
workbench.render("gram_spectra", presets="quick")
"""


@pytest.mark.parametrize("path", stubs(), ids=lambda path: path.name)
def test_a_stub_is_current(path):
    assert path.read_text(encoding="utf-8") == stubs()[path], "write it: python -m tests.stubs"


def test_every_option_of_every_analysis_is_typed():
    (text,) = [text for path, text in stubs().items() if path.name == "options.pyi"]
    classes = {
        name: (re.split(r", ", bases), body)
        for name, bases, body in re.findall(r"class (\w+)\((.*)\):\n((?:    .*\n|\n(?=    ))*)", text)
    }

    def typed(name):
        bases, body = classes[name]
        inherited = [typed(base) for base in bases if base in classes]
        return {key: kind for part in inherited for key, kind in part.items()} | dict(
            re.findall(r"^    (\w+): (.*?)(?:  # .*)?$", body, re.MULTILINE)
        )

    assert len(entries()) > 20
    for entry in entries():
        expected = {key: written(option.kind) for key, option in options_of(entry.options_type).items()}
        assert typed(class_of(entry)) == expected, entry.name


@pytest.mark.integration
def test_a_wrong_option_is_an_error_and_a_right_one_is_none(tmp_path):
    found = {}
    for name, code in {"right": RIGHT, "wrong": WRONG}.items():
        path = tmp_path / f"{name}.py"
        path.write_text(code, encoding="utf-8")
        check = [sys.executable, "-m", "ty", "check", "--python", sys.prefix, "--output-format", "concise"]
        done = subprocess.run([*check, path], capture_output=True, text=True, cwd=tmp_path, check=False)
        found[name] = [int(line) for line in re.findall(rf"{name}\.py:(\d+):", done.stdout)]
    assert found["right"] == []
    calls = [number for number, line in enumerate(WRONG.splitlines(), 1) if line.startswith("workbench.")]
    assert sorted({*found["wrong"]}) == calls
