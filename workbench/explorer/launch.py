"""JupyterLab, opened on the explorer notebook."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from workbench import paths
from workbench.errors import MissingResource

NOTEBOOK = "explorer"


def open_explorer(port: int | None = None, browser: bool = True) -> int:
    """Start JupyterLab on the explorer notebook, token on, and wait for it; returns its exit status.

    In a checkout the notebook opens where it lies; from an installed wheel a copy goes into the current folder,
    and a copy that is already there is kept. Figures are saved into ``figures/`` of the current folder.

    Raises `MissingResource` if the folder cannot be written to.
    """
    notebook = notebook_to_open(Path.cwd())
    command = [
        sys.executable, "-m", "jupyterlab",
        # The address that Jupyter prints leads to the notebook too, for those who open it by hand or from afar.
        f"--ServerApp.root_dir={notebook.parent}", f"--LabApp.default_url=/lab/tree/{notebook.name}",
        # Nothing is fetched that was not asked for.
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    command += [f"--port={port}"] if port else []
    command += [] if browser else ["--no-browser"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        # Jupyter refuses root unless told; in a container there is often nobody else. The token stays on.
        command.append("--allow-root")
    try:
        return subprocess.call(command, env={"WORKBENCH_OUT": str(Path.cwd() / "figures"), **os.environ})
    except KeyboardInterrupt:
        return 130


def notebook_to_open(folder: Path) -> Path:
    """The explorer notebook to edit: the checkout's own, or a copy in `folder`."""
    source = paths.notebooks_dir() / f"{NOTEBOOK}.ipynb"
    if (source.parent.parent / "pyproject.toml").is_file() and os.access(source, os.W_OK):
        return source
    target = folder / source.name
    if not target.exists():
        try:
            shutil.copy(source, target)
        except OSError as error:
            raise MissingResource(
                f"cannot put {source.name} into {folder}: {error.strerror}; start it in another folder"
            ) from error
    return target
