"""The explorer in a browser: JupyterLab on its notebook, or a page through voila."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import webbrowser
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workbench.apps.explorer.address import address_of_figure
from workbench.core import paths
from workbench.core.children import python
from workbench.core.errors import MissingResource
from workbench.core.extras import require

NOTEBOOK = "explorer"
_PAGE_PORT = 8866
_STARTUP_S = 600
_TEMPLATES = Path(__file__).parents[1] / "templates"
# What of JupyterLab's extensions the page loads; another that happens to be installed may fail outside Lab.
_EXTENSIONS = ["@jupyter-widgets/jupyterlab-manager", "@voila-dashboards/widgets-manager8", "anywidget"]
# What the first picture needs.
IMPORTS = [
    "workbench.models.checkpoints", "workbench.models.from_timm", "workbench.data.pools", "workbench.runs.analyze",
    "workbench.apps.explorer.widget", "workbench.apps.explorer.explorer", "workbench.apps.explorer.ablation",
    *(f"workbench.analyses.{name}" for name in (
        "attention_map", "attention_patterns", "attention_spectrum", "coding_rate", "gram_spectrum", "membership",
        "token_similarity",
    )),
]  # fmt: skip
_PAGE_CELL = """\
import os

os.chdir({folder!r})

from workbench.apps.explorer import Explorer
from workbench.apps.explorer.address import address_of_url

page = {explorer}.page(wait=False, height=0)
if address := address_of_url(os.environ.get("QUERY_STRING", "")):
    page.start(address)
page
"""


def open_explorer(
    figure: str | os.PathLike[str] | None = None,
    port: int | None = None,
    browser: bool = True,
    theme: str | None = None,
) -> int:
    """Start JupyterLab on a copy of the explorer notebook, token on, and wait for it; returns its exit status.

    With a saved ``figure`` the copy opens at the layer and head of the figure.

    JupyterLab saves by itself, so the notebook is a copy in the current folder (see `notebook_to_open`). Figures are
    saved into ``figures/`` there. A signal to end (`kill`) ends JupyterLab and its kernels too.

    Raises `MissingResource` if JupyterLab is not installed or the folder cannot be written to, and `InputError` for a
    figure that shows no layer.
    """
    require("the explorer in JupyterLab", "jupyterlab")
    notebook = notebook_to_open(Path.cwd(), figure)
    print(
        f"Your copy of the explorer notebook is {notebook}; JupyterLab saves what you change there "
        "(delete it for a fresh copy)",
        flush=True,
    )
    command = lab_command(notebook, port, browser)
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        with server_environment(theme) as environment:
            server = subprocess.Popen(command, env=environment)
            try:
                return server.wait()
            finally:  # after Ctrl-C Lab asks whether it is meant; this says yes, and lets it end its kernels
                server.terminate()
                server.wait()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except _Terminated:
        return 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


class _Terminated(BaseException):
    """A signal to end came; not an error, like `KeyboardInterrupt`."""


def _terminated(number: int, frame: object) -> None:
    raise _Terminated


def lab_command(
    notebook: Path, port: int | None = None, browser: bool = True, module: str = "workbench.apps.explorer.lab"
) -> list[str]:
    """Return the command that opens a notebook in JupyterLab; `module` starts it."""
    command = python(
        "-m",
        module,
        # The address that Jupyter prints leads to the notebook too, for those who open it by hand or from afar.
        f"--ServerApp.root_dir={notebook.parent}",
        f"--LabApp.default_url=/lab/tree/{notebook.name}",
        # Nothing is fetched that was not asked for.
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    )
    command += [f"--port={port}"] if port else []
    command += [] if browser else ["--no-browser"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        # Jupyter refuses root unless asked; in a container there is often nobody else. The token stays on.
        command.append("--allow-root")
    return command


def open_page(
    figure: str | os.PathLike[str] | None = None,
    port: int | None = None,
    browser: bool = True,
    theme: str | None = None,
) -> int:
    """Serve the explorer as a page, token on, until it is interrupted; returns 130.

    Every visit gets its own kernel, in the current folder; figures are saved into its ``figures/``. `theme` is
    "paper" or "talk" (larger letters), by default ``WORKBENCH_THEME``. With a saved ``figure`` the page opens at the
    layer and head that it shows; the page's own address says where it stands, and an address that says it
    (``?model=bundled:digits-vit&layer=2&head=1&query=12``) opens there.

    Raises `MissingResource` if voila is not installed, and `InputError` for a figure that shows no layer.
    """
    require("the explorer as a page", "voila")
    from traitlets.config import Config
    from voila.app import Voila

    from workbench.apps.rendering.kernels import import_early

    class Page(Voila):
        """Voila, with an address that opens: its own lacks the token."""

        def launch_browser(self) -> None:
            address = f"{self.connection_url}?token={self.identity_provider.token}"
            print(f"The explorer is at {address} (Ctrl-C ends it)", flush=True)
            if browser:
                threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()

    address = None if figure is None else address_of_figure(figure)
    with (
        server_environment(theme) as environment,
        tempfile.TemporaryDirectory(prefix="workbench-explorer-") as scratch,
    ):
        os.environ.update(environment)  # the kernels inherit it
        os.environ["PYTHONSAFEPATH"] = "1"  # and the interpreters started here what `python` gives others
        import_early(IMPORTS)
        # The page's template is found like every other of Jupyter's.
        os.environ["JUPYTER_PATH"] = os.pathsep.join(
            [str(_TEMPLATES), *filter(None, [os.environ.get("JUPYTER_PATH")])]
        )
        settings = Config()
        settings.Voila.port = _PAGE_PORT if port is None else port
        settings.Voila.token = secrets.token_hex(24)
        settings.Voila.root_dir = settings.Voila.connection_dir_root = scratch
        settings.Voila.notebook_path = str(page_notebook(Path(scratch), Path.cwd(), address))
        settings.Voila.config_file_paths = []  # what lies in the current folder changes nothing
        settings.Voila.log_level = "WARN"
        # The first visit may come before everything is imported, on a machine that is busy.
        settings.VoilaExecutor.startup_timeout = _STARTUP_S
        settings.VoilaConfiguration.template = "explorer"
        settings.VoilaConfiguration.strip_sources = True
        settings.VoilaConfiguration.prelaunch_hook = _with_token
        settings.VoilaConfiguration.file_allowlist = []
        settings.VoilaConfiguration.extension_allowlist = _EXTENSIONS
        page = Page(config=settings)
        page.initialize([])
        page.start()
    return 130


def _with_token(handler: Any, *arguments: Any, **options: Any) -> None:
    """Give the browser the token (a cookie) that lets it end the kernel when the page is left, or opened again."""
    handler.xsrf_token  # noqa: B018 - asking for it sets the cookie


@contextmanager
def server_environment(theme: str | None = None) -> Generator[dict[str, str]]:
    """Set the environment of a server: folder of figures, size of letters, and kernels of this Python.

    What the user has said before about figures and letters stays. On Linux the kernels are forked from a process
    that imports what the explorer needs while the server and the browser start.
    """
    from workbench.apps.rendering.kernels import kernel_environment
    from workbench.figures.theme import find_theme

    variables = {
        "WORKBENCH_OUT": str(Path.cwd() / "figures"),
        **os.environ,
        "WORKBENCH_THEME": find_theme(theme).name,
    }
    with kernel_environment() as kernels:
        yield {**variables, **kernels}


def page_notebook(folder: Path, start: Path, address: Mapping[str, Any] | None = None) -> Path:
    """Write the page's notebook into `folder`: one cell that shows the explorer, working in the folder `start`."""
    import nbformat

    explorer = "Explorer()" if address is None else f"Explorer.at({dict(address)!r})"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(_PAGE_CELL.format(folder=str(start), explorer=explorer))],
        metadata={"kernelspec": kernel, "title": "Attention Workbench"},
    )
    target = folder / f"{NOTEBOOK}.ipynb"
    nbformat.write(notebook, target)
    return target


def notebook_to_open(folder: Path, figure: str | os.PathLike[str] | None = None) -> Path:
    """Copy the explorer notebook into `folder` for JupyterLab; an existing copy is kept.

    The copy for a saved ``figure`` is ``explorer-NAME.ipynb``, with the parameters of its view.
    A checkout's notebooks are never opened themselves: started among them, the copy is written beside their folder.
    """
    source = paths.notebooks_dir() / f"{NOTEBOOK}.ipynb"
    if folder.resolve().is_relative_to(source.parent.resolve()):
        folder = source.parent.parent
    target = folder / (source.name if figure is None else f"{NOTEBOOK}-{Path(figure).stem}.ipynb")
    address = None if figure is None else address_of_figure(figure)
    if not target.exists():
        try:
            if address is None:
                shutil.copyfile(source, target)  # whatever the rights of the source, the copy can be written
            else:
                _write_at(address, source, target)
        except OSError as error:
            raise MissingResource(
                f"cannot put {target.name} into {folder}: {error.strerror}; start it in another folder"
            ) from error
    return target


def _write_at(address: Mapping[str, Any], source: Path, target: Path) -> None:
    """Write the notebook with an address for its parameters, in an extra cell as papermill does."""
    import nbformat
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    parameters = dict(address)
    if "token" in parameters and parameters["token"] is None:
        parameters["token"] = "all"  # the notebook's None is the class token of an image
    nbformat.write(parameterize_notebook(load_notebook_node(str(source)), parameters), target)
