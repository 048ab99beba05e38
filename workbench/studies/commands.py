"""What the commands that make committed records share: two folders, and the exit statuses of the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from workbench.core.errors import WorkbenchError
from workbench.core.paths import data_dir


def record_parser(command: str, description: str, work: str, kept: str) -> argparse.ArgumentParser:
    """A parser with ``--data``, where the record goes, and ``--work``, where `kept` is kept meanwhile."""
    parser = argparse.ArgumentParser(prog=command, description=description)
    parser.add_argument(
        "--data", type=Path, default=data_dir(), help="folder to write to (default: %(default)s)"
    )
    parser.add_argument("--work", type=Path, default=Path(work), help=f"{kept} (default: %(default)s)")
    return parser


def run_command(
    parser: argparse.ArgumentParser, arguments: list[str] | None, make: Callable[..., str | None]
) -> int:
    """Call `make` with the options, print what it says, and return the exit status (see `workbench.apps.cli`)."""
    options = parser.parse_args(arguments)
    try:
        said = make(**vars(options))
    except WorkbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    if said:
        print(said)
    return 0
