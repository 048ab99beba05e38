"""Output of commands, and their checks before they begin."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from workbench.core.errors import InputError

Tables = list[tuple[str, list[tuple[str, str]]]]
"""Headings, each with rows of a term and its meaning."""


class WithTables(click.Command):
    """A command whose help ends with tables, which are made of the words beside ``--help``."""

    def __init__(self, *arguments: Any, tables: Callable[[Sequence[str]], Tables], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.tables = tables

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words: the help is printed before an argument beside it is read."""
        ctx.obj = tuple(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the tables for the words of the command line."""
        for heading, rows in self.tables(ctx.obj or ()):
            with formatter.section(heading):
                formatter.write_dl(rows)


def option_rows(name: str, title: str, options: Any) -> list[tuple[str, str]]:
    """List an analysis or variant with its options below it, as rows of a help table."""
    from workbench.apps.cli.shared_options import written

    rows = [(f"  {key}={written(option.default)}", option.help) for key, option in options.items()]
    return [(name, title), *rows]


def print_table(rows: Sequence[dict[str, Any]], title: str, as_json: bool = False) -> None:
    """Print rows as a table, or as JSON records."""
    if as_json:
        click.echo(json.dumps(list(rows), indent=1, ensure_ascii=False, default=str))
        return
    from rich.console import Console
    from rich.table import Table

    # A pipe has no width, and a table cut at 80 columns would lose information.
    console = Console(width=None if sys.stdout.isatty() else 160, markup=False)
    table = Table(title=title, title_justify="left", header_style="bold", show_lines=False)
    for name in rows[0] if rows else ():
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
                        for value in row.values()))  # fmt: skip
    console.print(table)


def records_of(frame: Any) -> list[dict[str, Any]]:
    """Convert the rows of a frame to JSON records, with None for missing values."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def check_out(out: str | None, what: str, suffix: str = ".csv") -> None:
    """Raise before the work if its result could not be written: a wrong suffix, or an unwritable path."""
    from workbench.core.files import check_writable

    if out is None:
        return
    if not out.endswith(suffix):
        raise InputError(f"{what} written as {suffix}; {Path(out).name!r} ends otherwise")
    check_writable(out)


def write_csv(frame: Any, out: str | Path | None) -> None:
    """Write a frame's rows to the path, if any."""
    from workbench.core.files import atomic_write
    from workbench.frames.tables import csv_bytes

    if out:
        atomic_write(out, csv_bytes(frame))


def print_notes(notes: Sequence[str]) -> None:
    """Print notes on the numbers to standard error."""
    for note in notes:
        click.echo(f"note: {note}", err=True)
