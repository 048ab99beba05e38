"""MkDocs hook: a page for each notebook, from its source; with its figures where `make figures` has drawn them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from workbench.apps.rendering.notebooks import Notebook, read_notebook
from workbench.core.paths import bundled_notebooks
from workbench.papers.published import PAPERS

ROOT = Path(__file__).parents[2]
NAMES = bundled_notebooks()
SECTION = "Notebooks"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages into the navigation, under the section that mkdocs.yml gives them."""
    (section,) = [entry[SECTION] for entry in config.nav or () if SECTION in entry]
    section += [{name.replace("_", " "): f"notebooks/{name}.md"} for name in NAMES]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and the images they show."""
    drawn = _drawn(ROOT / "figures")
    for name, path in NAMES.items():
        shown = drawn.get(name, {})
        content = _page(path, shown)
        files.append(File.generated(config, f"notebooks/{name}.md", content=content))
        for image in shown:
            address = f"notebooks/figures/{image.name}"
            files.append(File.generated(config, address, abs_src_path=str(image)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Link "notebook `name`" to its page, and the names in the table of all notebooks."""
    up = "../" * page.file.src_uri.count("/")
    if page.file.src_uri == "notebooks/index.md":
        markdown = re.sub(r"^\| `(\w+)` \|", r"| [`\1`](\1.md) |", markdown, flags=re.MULTILINE)

    def linked(found: re.Match[str]) -> str:
        name = found[2]
        return f"{found[1]} [`{name}`]({up}notebooks/{name}.md)" if name in NAMES else found[0]

    return re.sub(r"\b(notebooks?) `(\w+)`", linked, markdown)


def _page(path: Path, drawn: dict[Path, dict[str, Any]]) -> str:
    notebook, (first, *cells) = read_notebook(path), nbformat.read(path, as_version=4).cells
    parameters = [cell for cell in cells if "parameters" in cell.metadata.get("tags", ())]
    parts = [
        first.source,
        _papers(first.source),
        f"```sh\nworkbench render {notebook.name}\n```",
        "## Parameters",
        *(_fenced(cell.source) for cell in parameters),
        *_presets(notebook),
        "## Figures",
        *(_figure(image, described) for image, described in drawn.items()),
        ""
        if drawn
        else "Not drawn when these pages were built: `make figures` draws them, `make docs` shows them.",
        "## Code",
        *(
            _fenced(cell.source) if cell.cell_type == "code" else cell.source
            for cell in cells
            if cell not in parameters
        ),
    ]
    return "\n\n".join(part for part in parts if part)


def _papers(text: str) -> str:
    named = [key for key in PAPERS if key in text]
    return f"Papers: {', '.join(f'[{key}](../papers/{key}.md)' for key in named)}." if named else ""


def _fenced(source: str) -> str:
    return f"```python\n{source}\n```"


def _presets(notebook: Notebook) -> list[str]:
    """What each preset sets, as a table; nothing where none sets anything."""
    rows = [
        f"| `{preset}` | {', '.join(f'`{key} = {value!r}`' for key, value in values.items())} |"
        for preset, values in notebook.presets.items()
        if values
    ]
    return ["\n".join(["| preset | sets |", "| --- | --- |", *rows])] if rows else []


def _figure(image: Path, described: dict[str, Any]) -> str:
    alt = re.sub(r"[\[\]]", "", described["alt"])
    return f"![{alt}](figures/{image.name})\n\n*{image.stem}.* {described['caption']}"


def _drawn(folder: Path) -> dict[str, dict[Path, dict[str, Any]]]:
    """By notebook: its images in a folder of rendered figures, with their captions and alternative texts."""
    found: dict[str, dict[Path, dict[str, Any]]] = {}
    for image in sorted(folder.glob("*.png")):
        provenance = image.with_suffix(".json")
        if provenance.is_file():
            content = json.loads(provenance.read_text(encoding="utf-8"))
            found.setdefault((content.get("notebook") or {}).get("name"), {})[image] = content["figure"]
    return found
