"""What a page of the documentation tells a reader to type, and how it is run.

The fenced blocks of a page run in order, in one folder: `python` blocks share their names; where the page is a
walk-through, `workbench` lines of `sh` blocks go through the command's entry point. A block with a title is a file of
the repository: its code becomes that module, and of a test file every test is called. A comment
`<!-- not run: why -->` before a block leaves it out. An image of `figures/examples` right below a `python` block
shows what the block leaves in `figure`.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import click
import plotly.graph_objects as go

from workbench.apps import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WALKED = {"tutorials", "adding", "papers"}
"""Folders whose commands run; those of the other pages show settings, take long, and are understood only."""
_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>.+?) -->\n+)?^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```"
    r"(?:\n\n!\[[^\]]+\]\((?:\.\./)*figures/examples/(?P<image>[\w-]+)\.png\))?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its code, the file it stands for, why it is not run, and its image, or ""."""

    language: str
    code: str
    title: str
    why_not: str
    image: str

    def commands(self) -> list[list[str]]:
        """The words of every `workbench` line, without the name of the program."""
        if self.language != "sh":
            return []
        lines = self.code.replace("\\\n", " ").splitlines()
        return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("workbench ")]


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [
        Block(each["language"], each["code"], each["title"] or "", each["why"] or "", each["image"] or "")
        for each in found
    ]


def commands_of(page: Path) -> Iterator[list[str]]:
    """The words of every complete `workbench` command on a page, in its blocks and within sentences."""
    for block in blocks_of(page):
        yield from block.commands()
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    for command in re.findall(r"`(workbench [^`]+)`", prose):
        words = shlex.split(command)[1:]
        _, _, asked = find_command(words)
        if asked and asked[-1] != "--help":  # a command's bare name is only a mention of it
            yield words


def understand(words: list[str]) -> click.Context:
    """Parse a command without running it; click says what is wrong with one that cannot be."""
    name, command, asked = find_command(words)
    return command.make_context(name, asked)


def find_command(words: list[str]) -> tuple[str, click.Command, list[str]]:
    """The command that words begin with, its name, and the words after it."""
    name, command = "workbench", cli.cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        command = command.commands[name]
    return name, command, words


def run_page(page: Path, drawn: Callable[[str, go.Figure], object] | None = None) -> dict[str, Any]:
    """Run the blocks of a page in the current folder; returns the names that its Python leaves behind.

    ``drawn`` gets the name and the figure of every block with an image below it.
    """
    names: dict[str, Any] = {"__name__": f"page_{page.stem}"}
    for number, block in enumerate(blocks_of(page)):
        if block.why_not:
            continue
        if block.title.endswith(".ipynb"):
            continue  # its text is what `workbench new notebook` writes
        if block.language == "python" and block.title:
            _become(block, page)
        elif block.language == "python":
            exec(compile(block.code, f"{page.name}, block {number}", "exec"), names)
            if block.image:
                figure = names.pop("figure")
                assert isinstance(figure, go.Figure), f"{page.name}: {block.image} shows no figure"
                if drawn is not None:
                    drawn(block.image, figure)
        for words in block.commands() if page.parent.name in WALKED else ():
            assert _status(words) == 0, f"{page.name}: workbench {shlex.join(words)}"
    return names


def _become(block: Block, page: Path) -> None:
    """Let the code of a block be the module that its title names, and call the tests of a test file."""
    name = ".".join(PurePosixPath(block.title).with_suffix("").parts)
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(block.code, f"{page.name}, {block.title}", "exec"), vars(module))
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)
    for key, value in list(vars(module).items()):
        if block.title.startswith("tests/") and key.startswith("test_"):
            value()


def _status(words: list[str]) -> int:
    try:
        cli.main(words)
    except SystemExit as left:
        return int(left.code or 0)
    return 0
