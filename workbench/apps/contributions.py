"""Files to start from: a notebook with a module beside it, or an analysis with its test.

They are the worked examples of docs/adding, whose blocks of code with a title are files, under another name.
"""

from __future__ import annotations

import importlib.util
import json
import keyword
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.core.errors import InputError
from workbench.core.files import atomic_write
from workbench.core.paths import examples_dir

EXAMPLES = {"analysis": "key_share", "notebook": "row_entropy"}
"""Kinds of contribution, each with the name that its worked example has on the page of that name."""
_BLOCK = re.compile(r'^```python title="(?P<title>[^"]+)"\n(?P<code>.*?)^```$', re.DOTALL | re.MULTILINE)
_CELL = re.compile(r"^# %%(?P<header>.*)\n", re.MULTILINE)
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def write_files(kind: str, name: str, folder: str | os.PathLike[str] = ".") -> list[Path]:
    """Write the files of a new "analysis" or "notebook", and return their paths.

    In a checkout of the workbench they go to their places, elsewhere into the folder itself.

    Raises:
        InputError: a name that is no module's, or is taken; a file that exists.
        MissingResource: a folder that cannot be written.
    """
    module = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", module) or keyword.iskeyword(module):
        raise InputError(
            f"{name!r} cannot name a module; give up to 40 lower-case letters, digits, '_' or '-', a letter first"
        )
    folder = Path(folder)
    checkout = (folder / "workbench" / "analyses" / "registry.py").is_file()
    page = (examples_dir() / f"{kind}.md").read_text(encoding="utf-8")
    contents = {
        folder / (title if checkout else Path(title).name): content
        for title, content in _files(page, EXAMPLES[kind], module, checkout)
    }
    if existing := next((path for path in contents if path.exists()), None):
        raise InputError(f"{existing} exists; choose another name, or remove it")
    if importlib.util.find_spec(module) or (kind == "analysis" and _is_analysis(module)):
        raise InputError(f"{name!r} is the name of an installed module or analysis; choose another")
    return [atomic_write(path, content.encode()) for path, content in contents.items()]


def _is_analysis(module: str) -> bool:
    from workbench.analyses.registry import ANALYSES

    return module.replace("_", "-") in ANALYSES


def _files(page: str, example: str, module: str, checkout: bool) -> Iterator[tuple[str, str]]:
    """Yield path and content of every file of a page, with the example's name replaced."""
    for block in _BLOCK.finditer(page):
        title, text = block["title"].replace(example, module), block["code"]
        if not checkout:
            text = text.replace(f"workbench.analyses.{example}", example)
        for form in (str, str.upper, _dashed):
            text = text.replace(form(example), form(module))
        yield title, _notebook(text) if title.endswith(".ipynb") else text


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _notebook(text: str) -> str:
    """Convert a notebook from jupytext's percent format, whose first comment is its metadata in YAML, to JSON."""
    import yaml

    head, *parts = _CELL.split(text)
    metadata = yaml.safe_load(_uncommented(head).replace("---", ""))
    cells: list[dict[str, Any]] = []
    for header, body in zip(parts[::2], parts[1::2], strict=True):
        tags = re.search(r"tags=(\[.*\])", header)
        kind = "markdown" if "[markdown]" in header else "code"
        source = _uncommented(body) if kind == "markdown" else body
        cells.append(
            {
                "cell_type": kind,
                **({"execution_count": None, "outputs": []} if kind == "code" else {}),
                "id": str(len(cells)),
                "metadata": {"tags": json.loads(tags[1])} if tags else {},
                "source": source.strip().splitlines(keepends=True),
            }
        )
    metadata = {"kernelspec": _KERNEL, "language_info": {"name": "python"}, **metadata}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _uncommented(text: str) -> str:
    return re.sub(r"^# ?", "", text, flags=re.MULTILINE)
