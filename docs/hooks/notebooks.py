"""MkDocs hook: a page for each notebook, from its source; with outputs and figures where `make figures` has run it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.hooks.pictures import webp
from workbench.apps.rendering.gallery import QUESTIONS
from workbench.apps.rendering.notebooks import Notebook, read_notebook
from workbench.core.paths import bundled_notebooks
from workbench.papers.published import PAPERS

ROOT = Path(__file__).parents[2]
NAMES = bundled_notebooks()
SECTION = "Notebooks"
PICTURES = "pictures"  # beside the table of notebooks; `scripts/pictures thumbnails` makes them
MAGNIFIED = 1.5  # of a figure's printed width: a column would be small on a screen
_FORMULA = re.compile(r"(?<![\\$`])(\${1,2})(?![\s$])(.+?)(?<![\s\\])\1(?!\d)", re.DOTALL)
_SIZED = re.compile(r"\\[bB]igg?\s*(?=\\[lr][vV]ert)|\\nolimits\b")  # what the converter does not know
_GITHUB = re.compile(r"https://github\.com/([^/]+/[^/]+?)(?:\.git)?/?")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages into the navigation, under the section that mkdocs.yml gives them."""
    (section,) = [entry[SECTION] for entry in config.nav or () if SECTION in entry]
    section += [{name.replace("_", " "): f"notebooks/{name}.md"} for name in NAMES]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, the images they show, and the notebooks themselves: as stored, and as run."""
    drawn = drawn_by_notebook(ROOT / "figures")
    for name, path in NAMES.items():
        shown = drawn.get(name, {})
        run = _as_run(path, ROOT / "figures" / "notebooks" / f"{name}.ipynb")
        content = _page(path, shown, run, config.extra.get("repository") or "")
        files.append(File.generated(config, f"notebooks/{name}.md", content=content))
        files.append(File.generated(config, f"notebooks/stored/{name}.ipynb", abs_src_path=str(path)))
        if run is not None:
            files.append(File.generated(config, f"notebooks/run/{name}.ipynb", content=nbformat.writes(run)))
        for image in shown:
            address = f"notebooks/figures/{image.stem}.webp"
            files.append(File.generated(config, address, content=webp(image)))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Link "notebook `name`" to its page, and fill the table of all notebooks from their metadata."""
    up = "../" * page.file.src_uri.count("/")
    markdown = markdown.replace("<!-- notebooks -->", _table(files))

    def linked(found: re.Match[str]) -> str:
        name = found[2]
        return f"{found[1]} [`{name}`]({up}notebooks/{name}.md)" if name in NAMES else found[0]

    return re.sub(r"\b(notebooks?) `(\w+)`", linked, markdown)


def _table(files: Files) -> str:
    """All notebooks, by their question: picture, name and what they show."""
    rows = []
    for notebook in sorted(
        map(read_notebook, NAMES.values()), key=lambda held: QUESTIONS.index(held.question)
    ):
        picture, link = f"{PICTURES}/{notebook.name}.png", f"]({notebook.name}.md)"
        there = files.get_file_from_path(f"notebooks/{picture}")
        shown = f"[![]({picture}){{ width=160 loading=lazy }}{link}" if there else ""
        rows.append(f"| {shown} | [`{notebook.name}`{link} | {notebook.question} | {notebook.shows} |")
    return "\n".join(["| | notebook | question | shows |", "| --- | --- | --- | --- |", *rows])


def _page(
    path: Path,
    drawn: Mapping[Path, dict[str, Any]],
    run: nbformat.NotebookNode | None = None,
    repository: str = "",
) -> str:
    notebook, (first, *cells) = read_notebook(path), nbformat.read(path, as_version=4).cells
    parameters = [cell for cell in cells if _tagged(cell, "parameters")]
    left = dict(drawn)
    shown = []
    for cell in run.cells[1:] if run is not None else cells:
        if _tagged(cell, "parameters") or _tagged(cell, "injected-parameters"):
            continue
        shown += [_fenced(cell.source) if cell.cell_type == "code" else _with_formulas(cell.source)]
        shown += _outputs(cell)
        for image in [image for image in left if f'"{image.stem}"' in cell.source and run is not None]:
            shown.append(_figure(image, left.pop(image)))
    parts = [
        _with_formulas((first if run is None else run.cells[0]).source),
        _papers(first.source),
        _ways_to_open(path, run is not None, repository),
        f"```sh\nworkbench render {notebook.name}\n```",
        "## Parameters",
        *(_fenced(cell.source) for cell in parameters),
        *_presets(notebook),
        ""
        if run is not None or not notebook.rendered
        else "Not run when these pages were built: `make figures` runs it, `make docs` shows it then.",
        *shown,
        *(["## Figures"] if left else []),
        *(_figure(image, described) for image, described in left.items()),
    ]
    return "\n\n".join(part for part in parts if part)


def _tagged(cell: nbformat.NotebookNode, tag: str) -> bool:
    return tag in cell.metadata.get("tags", ())


def _as_run(source: Path, copy: Path) -> nbformat.NotebookNode | None:
    """The copy that a render has run, without the places of this machine; None for none, or one of another source."""
    if not copy.is_file():
        return None
    run = nbformat.read(copy, as_version=4)
    own = [cell.source for cell in run.cells if not _tagged(cell, "injected-parameters")]
    # a render writes the finding into the first cell
    if own[1:] != [cell.source for cell in nbformat.read(source, as_version=4).cells][1:]:
        return None
    run.metadata.pop("papermill", None)
    for cell in run.cells:
        cell.metadata.pop("papermill", None)
        if _tagged(cell, "injected-parameters"):
            cell.source = re.sub(r"^out = .*\n?", "", cell.source, flags=re.MULTILINE)
    return run


def _with_formulas(text: str) -> str:
    """Markdown with its LaTeX as MathML, which browsers draw without a script."""

    def drawn(found: re.Match[str]) -> str:
        block = len(found[1]) == 2
        formula = convert(_SIZED.sub("", found[2]), display="block" if block else "inline").replace("\n", " ")
        # a bar that stretches would hang below the letters beside it
        formula = re.sub(r"<mo>(?=&#x(?:02016|0007C);)", '<mo stretchy="false">', formula)
        # at the start of a line <math> would end the paragraph
        return f'<div class="formula">{formula}</div>' if block else f"<span>{formula}</span>"

    return _FORMULA.sub(drawn, text)


def _outputs(cell: nbformat.NotebookNode) -> list[str]:
    """What a cell printed, and its tables. Figures are shown as they are in print."""
    parts = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        table = data.get("text/html", "")
        if output.output_type == "stream" and output.name == "stdout" and output.text.strip():
            parts.append(f"```text\n{output.text.strip()}\n```")
        elif "<table" in table and "<script" not in table:
            table = re.sub(r"<style.*?</style>", "", table, flags=re.DOTALL)
            table = table.replace(' border="1" class="dataframe"', "")
            rows = "\n".join(line.strip() for line in table.splitlines() if line.strip())
            parts.append(f'<div class="output" markdown="0">\n{rows}\n</div>')
        elif set(data) == {"text/plain"}:
            parts.append(f"```text\n{data['text/plain'].strip()}\n```")
    return parts


def _ways_to_open(path: Path, run: bool, repository: str) -> str:
    """Links that open the notebook: what needs a public repository is left out without one."""
    place = path.relative_to(ROOT).as_posix()
    stored = f"[the notebook](stored/{path.name})"
    copies = f"{stored}, [as it ran, with its figures](run/{path.name})" if run else stored
    lines = []
    if found := _GITHUB.fullmatch(repository):
        lines += [
            f"[Open in Colab](https://colab.research.google.com/github/{found[1]}/blob/main/{place}) or "
            f"[in Kaggle](https://www.kaggle.com/kernels/welcome?src=https://github.com/{found[1]}/blob/main/{place}), "
            f'which were not tried; one cell first: `%pip install "attention-workbench[figures] @ git+{repository}"`',
            f"[Open in VS Code](https://vscode.dev/github/{found[1]}/blob/main/{place})",
        ]
    lines += [
        f"JupyterLab, in a checkout: `.venv/bin/jupyter lab {place}`",
        f"Download {copies}: it opens in JupyterLab, VS Code and Colab",
    ]
    return "\n".join(f"- {line}" for line in lines)


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
    width, height = (round(MAGNIFIED * described[side]) for side in ("width_px", "height_px"))
    finding = described.get("finding") or ""
    caption = f"**{finding}**" * bool(finding) + described["caption"].removeprefix(finding)
    attributes = f"{{ width={width} height={height} loading=lazy }}"
    shown = f"![{alt}](figures/{image.stem}.webp){attributes}\n\n*{image.stem}.* {caption}"
    if not described.get("opens"):
        return shown
    return f"{shown} In the explorer, once rendered: `workbench explore figures/{image.stem}.json`."


def drawn_by_notebook(folder: Path) -> dict[str, dict[Path, dict[str, Any]]]:
    """By notebook: its images in a folder of rendered figures, with their captions and alternative texts.

    ``opens`` says whether the explorer has a view of what one shows.
    """
    found: dict[str, dict[Path, dict[str, Any]]] = {}
    for image in sorted(folder.glob("*.png")):
        provenance = image.with_suffix(".json")
        if provenance.is_file():
            content = json.loads(provenance.read_text(encoding="utf-8"))
            name = (content.get("notebook") or {}).get("name")
            opens = any(model.get("spec") for model in content.get("models", [])[:1])
            found.setdefault(name, {})[image] = content["figure"] | {"opens": opens}
    return found
