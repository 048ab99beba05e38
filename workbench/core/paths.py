"""Folders of the bundled files: next to the package in a checkout, inside it in an installed wheel."""

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
    """Return the folder of bundled models, texts, records and published tables."""
    return _root() / "data"


@cache
def notebooks_dir() -> Path:
    """Return the folder of the figure notebooks."""
    return _root() / "notebooks"


@cache
def examples_dir() -> Path:
    """Return the folder of the worked examples that `workbench new` copies."""
    root = _root()
    return root / "adding" if root.name == "_bundled" else root / "docs" / "adding"


def bundled_notebooks() -> dict[str, Path]:
    """Return the figure notebooks by name, subfolders included.

    Raises:
        InputError: two notebooks have one name, so that their figures would overwrite each other.
    """
    notebooks: dict[str, Path] = {}
    folder = notebooks_dir()
    for path in (*folder.glob("*.ipynb"), *folder.glob("[!.]*/*.ipynb")):  # hidden ones are Jupyter's copies
        if path.stem in notebooks:
            raise InputError(
                f"two notebooks are called {path.stem!r}: {notebooks[path.stem]} and {path}; rename or remove one"
            )
        notebooks[path.stem] = path
    return dict(sorted(notebooks.items()))


def cache_dir() -> Path:
    """Return the project's cache folder: ``WORKBENCH_CACHE``, or the user cache folder of the system."""
    chosen = os.environ.get("WORKBENCH_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("workbench"))
