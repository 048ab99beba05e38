"""Commands that write files to start from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from workbench.apps.cli.shared_options import out_folder


@click.group()
def new() -> None:
    """Write the files of a new notebook or analysis, to start from."""


_folder = out_folder("Folder for the files; in a checkout, places in it.", default=".", show_default=True)


@new.command()
@click.argument("name")
@_folder
def notebook(name: str, out: str) -> None:
    """Write NAME.ipynb, with parameters, presets and a figure, and NAME.py beside it.

    \b
    workbench new notebook row_entropy
    """
    from workbench.apps.contributions import write_files

    path, *_ = reversed(write_files("notebook", name, out))
    _print_paths([path.with_suffix(".py"), path], f"workbench render {path}")


@new.command()
@click.argument("name")
@_folder
def analysis(name: str, out: str) -> None:
    """Write NAME.py, with options, a metric and a measurement, and a test of it.

    \b
    workbench new analysis key-share
    """
    from workbench.apps.contributions import write_files

    paths = write_files("analysis", name, out)
    _print_paths(paths, f"python -m pytest {paths[-1]}")
    click.echo(
        "`workbench analyze` finds it in a checkout; elsewhere, add an entry point (docs/extending.md)"
    )


def _print_paths(paths: Sequence[Path], command: str) -> None:
    for path in paths:
        click.echo(f"wrote {path}")
    click.echo(f"next: {command}")
