"""Where the bundled files live: beside the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import platformdirs

from workbench.core.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]


def _root() -> Path:
    bundled = _PACKAGE / "_bundled"
    return bundled if bundled.is_dir() else _PACKAGE.parent


@cache
def data_dir() -> Path:
    """Folder of bundled models, texts, records and published tables."""
    return _root() / "data"


@cache
def notebooks_dir() -> Path:
    """Folder of the figure notebooks."""
    return _root() / "notebooks"


def bundled_notebooks() -> dict[str, Path]:
    """The figure notebooks by name: those of their folder and of the folders in it.

    Raises:
        InputError: two of one name, whose figures would overwrite each other.
    """
    found: dict[str, Path] = {}
    folder = notebooks_dir()
    for path in (*folder.glob("*.ipynb"), *folder.glob("[!.]*/*.ipynb")):  # hidden ones are Jupyter's copies
        if path.stem in found:
            raise InputError(
                f"two notebooks are called {path.stem!r}: {found[path.stem]} and {path}; rename or remove one"
            )
        found[path.stem] = path
    return dict(sorted(found.items()))


def cache_dir() -> Path:
    """The project's own cache: ``WORKBENCH_CACHE``, or the user cache folder of the system."""
    chosen = os.environ.get("WORKBENCH_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("workbench"))
