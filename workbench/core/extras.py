"""Optional modules that an extra of the package installs, required where they are used."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from workbench.core.errors import MissingResource

EXTRAS = {
    "figures": (
        "kaleido", "pypdf", "papermill", "nbclient", "jupyter_client", "ipykernel", "ipywidgets", "anywidget",
        "cachetools", "skimage",
    ),
    "explore": ("jupyterlab", "voila"),
    "studies": ("accelerate", "art"),
    "rl": ("gymnasium",),
    "cluster": ("distributed", "dask_jobqueue"),
    "ray": ("ray",),
    "quantized": ("torchao",),
}  # fmt: skip
"""Extra → the modules that it installs, by their import names."""


def require(what: str, *modules: str) -> None:
    """Raise `MissingResource` with the message of `missing`, if any."""
    if problem := missing(what, *modules):
        raise MissingResource(problem)


def missing(what: str, *modules: str) -> str:
    """Return how to install a module that ``what`` needs and that is missing; else "". Imports nothing."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            extra = next(name for name, packages in EXTRAS.items() if module in packages)
            return (
                f"{what} needs {module}, which the core does not bring: install the extra {extra!r} with "
                f"{install_command(extra)}"
            )
    return ""


def install_command(extra: str) -> str:
    """Return the pip command that adds an extra, from the checkout or wheel that the package was installed from."""
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file():
        return f'pip install -e "{root}[{extra}]"'
    source = _installed_from() or "CHECKOUT"
    if extra != "models":
        return f'pip install "{source}[{extra}]"'
    if source.endswith(".whl"):
        return f'pip install --find-links "{Path(source).parent}" "{source}[models]"'
    return f'pip install "{source}/data"'  # its pyproject.toml builds that extra's package


def _installed_from() -> str | None:
    """Return the local folder or wheel that pip recorded (PEP 610)."""
    try:
        record = importlib.metadata.distribution("attention-workbench").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    address = urlsplit(json.loads(record)["url"] if record else "")
    return unquote(address.path) if address.scheme == "file" else None
