"""What the README tells a newcomer to type is true."""

import re
import shlex
from pathlib import Path

import click
import pytest

from workbench import cli
from workbench.paths import notebooks_dir

README = (Path(__file__).parents[1] / "README.md").read_text()
COMMANDS = [
    shlex.split(line.split("#")[0])[1:]
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("workbench ")
]


def test_its_python_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 2
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert names["capture"][3].attn.shape == (4, 3, 65, 65)
    assert set(names["frame"]["layer"].dropna()) == {0, 1, 2, 3}


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:60])
def test_its_commands_are_understood(words):
    command = cli.cli.commands[words[0]]
    context = command.make_context(words[0], list(words[1:]))
    assert isinstance(context, click.Context)


def test_it_lists_every_make_target_and_notebook():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    told = set(re.findall(r"^(\w+):.*## ", makefile, re.MULTILINE)) - {"help", "setup", "format", "clean"}
    assert {name for name in told if f"`{name}`" not in README and f"make {name}" not in README} == set()
    assert {path.stem for path in notebooks_dir().glob("*.ipynb") if f"`{path.stem}`" not in README} == set()
