"""Provenance of a figure: collected once, written to a file, embedded in the figure, and read back."""

from __future__ import annotations

import ast
import html
import importlib.metadata
import io
import itertools
import json
import os
import platform
import re
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NotRequired

import psutil
from typing_extensions import TypedDict

from workbench._version import __version__
from workbench.core import paths
from workbench.core.errors import InputError
from workbench.core.files import check_format, jsonable, sha256_file
from workbench.core.options import conforming, parsed

SCHEMA_VERSION = 3
PARAMETERS = "WORKBENCH_PARAMETERS"
"""The environment variable that passes a notebook's parameters from a render to the kernel."""
FIGURE_NAME = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}"
"""Pattern of a figure's name, which its files share."""
_INJECTED = "# Parameters\n"  # begins the cell that papermill injects
_MOST_NOTEBOOKS = 200  # read to find the one that runs
PACKAGES = ("torch", "timm", "transformers", "plotly", "kaleido", "numpy", "pandas")
PNG_KEY = "workbench"
_PDF_KEY = "/Workbench"
HTML_ID = "workbench-provenance"
_SVG_NAMESPACE = "urn:attention-workbench:provenance"
READABLE = (".json", ".png", ".svg", ".pdf", ".html", ".csv", ".tex")


class _Notebook(TypedDict):
    name: str
    modules: NotRequired[dict[str, str]]
    path: NotRequired[str | None]
    folder: NotRequired[str | None]
    sha256: NotRequired[str | None]
    parameters: NotRequired[dict[str, Any]]
    device: NotRequired[str | None]


class _Part(TypedDict):
    """A model or inputs."""

    name: NotRequired[str | None]
    spec: NotRequired[str | None]
    sha256: NotRequired[str | None]
    checkpoint: NotRequired[str | int | None]
    n: NotRequired[int | None]


class _Record(TypedDict):
    path: str
    sha256: str


class _Git(TypedDict):
    commit: str
    dirty: bool


class _Drawing(TypedDict):
    caption: str
    alt: str
    theme: str
    width_px: float
    height_px: float
    sha256: str
    flaws: NotRequired[list[str] | None]
    font: NotRequired[str | None]
    letters: NotRequired[str | None]
    finding: NotRequired[str | None]


class _Data(TypedDict):
    rows: int
    columns: list[str]
    sha256: str


class _Run(TypedDict):
    analysis: NotRequired[str | None]


class _Provenance(TypedDict):
    """The fields of a provenance that readers rely on."""

    schema: int
    name: str
    notebook: _Notebook | None
    preset: NotRequired[str | None]
    parameters: dict[str, Any]
    models: list[_Part]
    inputs: list[_Part]
    runs: list[_Run]
    records: list[_Record]
    versions: dict[str, str | None]
    git: _Git | None
    figure: _Drawing
    data: _Data
    created: str


@cache
def versions() -> dict[str, str | None]:
    """Return the versions of Python, the workbench and the libraries that compute or draw a figure."""
    installed: dict[str, str | None] = {"python": platform.python_version(), "workbench": __version__}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = None
    return installed


def _git_commit() -> dict[str, Any] | None:
    """Return `{"commit": …, "dirty": …}` of the package's checkout; None for an installed wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        # A checkout without a first commit has no HEAD: git fails, and there is no commit to name.
        commit = _git(root, "rev-parse", "HEAD").strip()
        # The index is read only: a second git at work in the checkout must not meet our lock.
        dirty = bool(
            _git(root, "--no-optional-locks", "status", "--porcelain", "--untracked-files=no").strip()
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": dirty}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", root, *arguments], capture_output=True, text=True, timeout=20, check=True
    )
    return done.stdout


def notebook_run(out: str | os.PathLike[str] = ".") -> dict[str, Any] | None:
    """Identify the notebook that this kernel runs, from `workbench render` or from its cells.

    Parameters are those that papermill injected. The ``path`` of a notebook that is not bundled is relative to ``out``,
    the folder of the figure. None if the cells that ran are those of no notebook that is known here.
    """
    value = os.environ.get("WORKBENCH_NOTEBOOK")
    if value:
        return json.loads(value) if value.startswith("{") else {"name": value}
    path = _running_notebook()
    if path is None:
        return None
    run = {"name": path.stem, "sha256": sha256_file(path), "parameters": _literals(_cells_run()[1])}
    bundled = path in paths.bundled_notebooks().values()
    return run if bundled else run | {"path": os.path.relpath(os.path.realpath(path), os.path.realpath(out))}


def _running_notebook() -> Path | None:
    """Return the file whose cells this kernel ran in order and unchanged; papermill gives a kernel no file name.

    Candidates are the bundled notebooks, those named by papermill's command line, and those in the current folder and
    the folders in it.
    """
    ran, _ = _cells_run()
    for path in _candidates() if ran else ():
        if ran == [source for source, _ in _code_cells(path)][: len(ran)]:
            return path
    return None


def _candidates() -> Iterator[Path]:
    yield from paths.bundled_notebooks().values()
    with suppress(psutil.Error, OSError):
        caller = psutil.Process(os.getppid())
        yield from (Path(caller.cwd(), word) for word in caller.cmdline() if word.endswith(".ipynb"))
    here = Path.cwd()
    yield from itertools.islice(
        itertools.chain(here.glob("*.ipynb"), here.glob("[!.]*/*.ipynb")), _MOST_NOTEBOOKS
    )


def local_modules() -> list[str]:
    """Return the files of the loaded modules that belong neither to the standard library nor to a package."""
    files = {getattr(module, "__dict__", {}).get("__file__") for module in [*sys.modules.values()]}
    return sorted({os.path.realpath(file) for file in files if isinstance(file, str) and _is_local(file)})


@cache
def _is_local(file: str) -> bool:
    path = Path(file)
    folders = [*map(sysconfig.get_path, ("stdlib", "platstdlib")), Path(__file__).parents[1]]
    installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return path.is_file() and not installed and not any(path.is_relative_to(folder) for folder in folders)


def _cells_run() -> tuple[list[str], str]:
    """Return the cells that this kernel has run, and separately the one that papermill injected."""
    ipython = sys.modules.get("IPython")  # imported by every kernel, and not for the sake of a script
    shell = ipython.get_ipython() if ipython else None
    history = getattr(shell, "history_manager", None)
    cells = [] if history is None else [cell.strip() for cell in history.input_hist_raw[1:]]
    injected = next((cell for cell in cells if cell.startswith(_INJECTED)), "")
    return [cell for cell in cells if cell != injected], injected


def _code_cells(path: Path) -> list[tuple[str, Sequence[str]]]:
    """Return source and tags of the code cells of a notebook that are not empty; none if it is unreadable.

    papermill's executed copy has none either, so that the notebook itself is the one that ran.
    """
    try:
        content = parsed(path.read_text(encoding="utf-8"))
        cells = [
            ("".join(cell["source"]).strip(), cell["metadata"].get("tags", ()))
            for cell in content["cells"]
            if cell["cell_type"] == "code" and "papermill" not in content["metadata"]
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError):
        return []  # saving the figure must not fail because of somebody's file
    return [(source, tags) for source, tags in cells if source]


def _literals(source: str) -> dict[str, Any]:
    """Return the values that a cell of papermill's assigns, except the output folder."""
    values: dict[str, Any] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            try:
                values[name] = ast.literal_eval(node.value)
            except ValueError:  # float('nan'), float('inf')
                values[name] = (
                    float(ast.literal_eval(node.value.args[0])) if isinstance(node.value, ast.Call) else None
                )
    return {name: value for name, value in values.items() if name != "out"}


def notebook_parameters() -> tuple[dict[str, Any], str | None]:
    """Return the parameters of the running notebook, and their source.

    "render": the values that `workbench render` sets. "variables": the variables that its cell tagged
    "parameters" assigns, as they are now, in JupyterLab and VS Code, which tell a kernel the file of its notebook, and
    in papermill (`notebook_run`); of a notebook whose file is unknown the variables that papermill injected.
    The source is None for a script and for a notebook whose file is unknown.
    """
    if value := os.environ.get(PARAMETERS):
        return json.loads(value), "render"
    ipython = sys.modules.get("IPython")  # imported by every kernel, and not for the sake of a script
    variables = getattr(ipython.get_ipython() if ipython else None, "user_ns", {})
    file = variables.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME")
    if not variables:
        return {}, None
    path = Path(file) if file else _running_notebook()
    names = [] if path is None else _tagged_names(path)
    names += [] if file else [*_literals(_cells_run()[1])]
    parameters = {name: variables[name] for name in names if name in variables}
    return (parameters, "variables") if parameters else ({}, None)


def _tagged_names(path: Path) -> list[str]:
    """Return the names that the cell tagged "parameters" assigns, without the output folder; none if unreadable."""
    try:
        cells = parsed(path.read_text(encoding="utf-8"))["cells"]
        tagged = [
            "".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", ())
        ]
        names = [
            node for source in tagged for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)
        ]
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        SyntaxError,
        RecursionError,
        MemoryError,
    ):
        return []  # saving the figure must not fail because of the session's file
    names.sort(key=lambda name: (name.lineno, name.col_offset))
    return [name.id for name in names if isinstance(name.ctx, ast.Store) and name.id != "out"]


def build_provenance(
    name: str,
    runs: Iterable[Mapping[str, Any]],
    parameters: Mapping[str, Any] | None,
    *,
    figure: Mapping[str, Any],
    data: Mapping[str, Any],
    records: Iterable[str | os.PathLike[str]] = (),
    out: str | os.PathLike[str] = ".",
) -> dict[str, Any]:
    """Collect everything needed to identify and redraw one figure.

    Args:
        name: the figure's name.
        runs: provenance of the frames it shows (`frame.attrs["provenance"]`): analysis, model, inputs, seed.
        parameters: the caller's parameters; None for `notebook_parameters`.
        figure: caption, finding, alt text, size, theme and hash of the drawing.
        data: rows, columns and hash of the CSV.
        records: committed files that the figure draws; each is named with its hash, and without the folders of this
            machine.
        out: the figure's folder; paths in the provenance are relative to it.

    Raises:
        InputError: a record that is no file.
    """
    runs = [jsonable(run) for run in runs]
    settings, source = notebook_parameters() if parameters is None else (parameters, "call")
    named = jsonable(settings)
    seeds = [run.get("seed") for run in runs if run.get("seed") is not None]
    notebook, folder = notebook_run(out), Path(os.path.realpath(out))
    if notebook is not None and folder.is_relative_to(
        Path.cwd()
    ):  # elsewhere it would name this machine's folders
        notebook["folder"] = os.path.relpath(Path.cwd(), folder)
    if notebook is not None and "path" in notebook:
        notebook_folder = (folder / notebook["path"]).resolve().parent
        notebook["modules"] = {
            _name_beside(Path(file), notebook_folder): sha256_file(file) for file in local_modules()
        }
    return {
        "schema": SCHEMA_VERSION,
        "name": name,
        "notebook": notebook,
        "preset": os.environ.get("WORKBENCH_PRESET") or None,
        "parameters": named,
        "parameters_from": source,
        "models": _distinct(run.get("model") for run in runs),
        "inputs": _distinct(run.get("inputs") for run in runs),
        "seed": named.get("seed", seeds[0] if seeds else None),
        "runs": runs,
        "records": [_record(path) for path in records],
        "versions": versions(),
        "git": _git_commit(),
        "figure": jsonable(figure),
        "data": jsonable(data),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _name_beside(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else file.name


def _distinct(items: Iterable[Any]) -> list[Any]:
    kept: list[Any] = []
    for item in items:
        if item and item not in kept:
            kept.append(item)
    return kept


def _record(path: str | os.PathLike[str]) -> dict[str, str]:
    if not Path(path).is_file():
        raise InputError(
            f"the record {os.fspath(path)!r} is no file; give the files that the figure was drawn from"
        )
    return {"path": _named(Path(path)), "sha256": sha256_file(path)}


def _named(path: Path) -> str:
    """Name a record relative to the bundled data or to the current folder, else by its file name only."""
    path = path.resolve()
    for folder in (paths.data_dir(), Path.cwd()):
        if path.is_relative_to(folder.resolve()):
            return path.relative_to(folder.resolve()).as_posix()
    return path.name


def dump(provenance: Mapping[str, Any], indent: int | None = None) -> str:
    """Format provenance as ASCII JSON, which every format's metadata can hold."""
    return json.dumps(jsonable(provenance), indent=indent)


def embed(content: bytes, format: str, provenance: Mapping[str, Any], dpi: float = 96) -> bytes:
    """Embed provenance in an image.

    PNG: an iTXt chunk, with title, description and resolution. SVG: `<title>`, `<desc>`, `<metadata>`. PDF: an
    entry of the document information, with title and subject.
    """
    embedders = {"png": _embed_png, "svg": _embed_svg, "pdf": _embed_pdf}
    if format not in embedders:
        raise InputError(f"provenance is embedded in {', '.join(sorted(embedders))}, not in {format!r}")
    return embedders[format](content, provenance, dpi)


def _embed_png(content: bytes, provenance: Mapping[str, Any], dpi: float) -> bytes:
    from PIL import PngImagePlugin

    head = 33  # the signature and the IHDR chunk; the others follow
    if content[12:16] != b"IHDR":
        raise InputError("the image is no PNG")
    info = PngImagePlugin.PngInfo()
    figure = provenance.get("figure", {})
    info.add_itxt("Title", str(provenance.get("name", "")))
    info.add_itxt("Description", str(figure.get("alt", "")))
    info.add_itxt(PNG_KEY, dump(provenance), zip=True)
    per_metre = round(dpi / 0.0254)
    # Only chunks are added: the pixels stay as they are, and need not be packed again.
    written = io.BytesIO()
    written.write(content[:head])
    PngImagePlugin.putchunk(written, b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1))
    for kind, data, *_ in info.chunks:
        PngImagePlugin.putchunk(written, kind, data)
    written.write(content[head:])
    return written.getvalue()


def _embed_svg(content: bytes, provenance: Mapping[str, Any], dpi: float) -> bytes:
    text = content.decode()
    opening = re.search(r"<svg\b[^>]*>", text)
    if opening is None:
        raise InputError("the SVG has no <svg> element")
    figure = provenance.get("figure", {})
    inner = (
        f"<title>{html.escape(str(provenance.get('name', '')), quote=False)}</title>"
        f"<desc>{html.escape(str(figure.get('alt', '')), quote=False)}</desc>"
        f'<metadata><workbench xmlns="{_SVG_NAMESPACE}">{html.escape(dump(provenance), quote=False)}'
        "</workbench></metadata>"
    )
    return (text[: opening.end()] + inner + text[opening.end() :]).encode()


def _embed_pdf(content: bytes, provenance: Mapping[str, Any], dpi: float) -> bytes:
    from pypdf import PdfWriter

    # An appended update keeps Chrome's bytes, which were checked, as they are.
    writer = PdfWriter(io.BytesIO(content), incremental=True)
    figure = provenance.get("figure", {})
    writer.add_metadata(
        {
            "/Title": str(provenance.get("name", "")),
            "/Subject": str(figure.get("caption", "")),
            "/Creator": f"workbench {__version__}",
            _PDF_KEY: dump(provenance),
        }
    )
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


def html_element(provenance: Mapping[str, Any]) -> str:
    """Return a data block for an HTML page. "<" is escaped, so that no text can end the element early."""
    return f'<script type="application/json" id="{HTML_ID}">{dump(provenance).replace("<", chr(92) + "u003c")}</script>'


def read_provenance(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the provenance of a figure from any of its files (for a CSV or LaTeX table, from its JSON file).

    Raises:
        InputError: no such file, another kind of file, or a file without provenance.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"no file at {path}; give a figure's NAME.json, or its PNG, SVG, PDF or HTML")
    suffix = path.suffix.lower()
    if suffix not in READABLE:
        raise InputError(
            f"cannot read provenance from {path.name!r}; give a file ending in {', '.join(READABLE)}"
        )
    if suffix in (".csv", ".tex"):
        return read_provenance(path.with_suffix(".json"))
    readers = {
        ".json": _read_json,
        ".png": _read_png,
        ".svg": _read_svg,
        ".pdf": _read_pdf,
        ".html": _read_html,
    }
    try:
        text = readers[suffix](path)
        content = parsed(text) if text else None
    except Exception as error:  # PIL and pypdf fail on damaged files in whatever way they are damaged
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("schema"), int) or "figure" not in content:
        raise InputError(f"{path} carries no workbench provenance; was it written by save_figure?")
    check_format(path, "provenance schema", content["schema"], SCHEMA_VERSION)
    try:
        conforming(_Provenance, content)
    except ValueError as error:
        raise InputError(
            f"{path} carries a provenance that does not hold ({error}); save the figure again"
        ) from error
    return content


def _read_json(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _read_png(path: Path) -> str | None:
    from PIL import Image

    with Image.open(path) as image:
        image.load()
        return image.info.get(PNG_KEY)


def _read_svg(path: Path) -> str | None:
    match = re.search(
        r'<workbench xmlns="[^"]*">(.*?)</workbench>', path.read_text(encoding="utf-8"), re.DOTALL
    )
    return html.unescape(match.group(1)) if match else None


def _read_pdf(path: Path) -> str | None:
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        metadata = PdfReader(path).metadata
    except PyPdfError as error:
        raise ValueError(str(error)) from error
    return str(metadata[_PDF_KEY]) if metadata and _PDF_KEY in metadata else None


def _read_html(path: Path) -> str | None:
    match = re.search(rf'id="{HTML_ID}">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    return match.group(1) if match else None
