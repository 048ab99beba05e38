"""The `workbench` command: verbs only, each calls one public function.

Heavy libraries are imported inside the commands, so that ``--help`` answers at once.

Exit status: 0 done; 1 part of the work failed (a notebook, an export, a figure that did not come out the same, an
incomplete capture); 2 the request was wrong (usage, bad input, unknown name); 3 this machine lacks something
(network or cached weights, Chrome, room on the disk); 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import click

from workbench._version import __version__
from workbench.apps.cli import analysis_commands, completion, figure_commands, new_commands, sweep_commands
from workbench.apps.commands import COMMANDS
from workbench.core.errors import WorkbenchError

_EXIT_CODES = (
    "Exit status: 0 done; 1 part of the work failed; 2 the request was wrong; "
    "3 this machine lacks something (weights, Chrome, disk); 130 interrupted."
)
_show_library_warning = warnings.showwarning
_LACKS = {errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EDQUOT}


GROUPS = {
    "Look": (
        figure_commands.demo,
        figure_commands.explore,
        analysis_commands.analyze,
        analysis_commands.capture,
        analysis_commands.compare,
    ),
    "Render": (
        figure_commands.render,
        figure_commands.reproduce,
        figure_commands.combine,
        figure_commands.cite,
    ),
    "Scale": (sweep_commands.sweep, analysis_commands.cache),
    "Papers": (analysis_commands.claims, analysis_commands.table),
    "Names": (
        analysis_commands.models,
        analysis_commands.analyses,
        analysis_commands.metrics,
        figure_commands.notebooks,
    ),
    "Housekeeping": (new_commands.new, analysis_commands.doctor, completion.completion),
}
"""Commands by heading of the help, in the order of a first visit."""


class _Commands(click.Group):
    """The commands under their headings; those of plug-ins, such as the studies', come last."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; the error about `list` names the commands that list."""
        if args[0] == "list":
            names = ", ".join(command.name or "" for command in GROUPS["Names"])
            ctx.fail(f"No such command 'list'. These commands list names: {names}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for every group."""
        grouped = {command for commands in GROUPS.values() for command in commands}
        others = tuple(command for command in self.commands.values() if command not in grouped)
        for heading, commands in (GROUPS | {"Studies and plug-ins": others}).items():
            rows = [(command.name or "", command.get_short_help_str(limit=200)) for command in commands]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


@click.group(cls=_Commands, epilog=_EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="workbench")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Look inside any transformer's attention, test what papers claim, print the figure.

    \b
    workbench demo                                     every head of a small model, in one page
    workbench explore                                  look inside a layer, in JupyterLab
    workbench render                                   every figure, into figures/index.html
    workbench analyze gram-spectrum -m bundled:digits-vit -i bundled:digits -o spectrum.csv
    """


cli.commands = COMMANDS
for commands in GROUPS.values():
    for command in commands:
        cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: a user's mistake ends in one clear line and an exit status, never in a traceback."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments or bool(os.environ.get("WORKBENCH_DEBUG"))
    # The flag may be anywhere, since it is added to a command that has just failed.
    arguments = [word for word in arguments if word != "--debug"]
    analysis_commands.WARNED.clear()
    warnings.showwarning = _warn  # ty: ignore[invalid-assignment] - Python documents it as the hook to replace
    try:
        cli.main(arguments, prog_name="workbench", standalone_mode=False)
        status = 0
    except click.exceptions.Exit as leave:
        status = leave.exit_code
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; finished work is kept", err=True)
        status = 130
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: nothing is wrong, and nothing can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except (WorkbenchError, OSError, MemoryError) as error:
        if debug:
            raise
        status = _status(error)
        click.echo(f"error: {str(error) or type(error).__name__}", err=True)
    except Exception as error:
        if debug:
            raise
        status = 1
        click.echo(
            f"error: {type(error).__name__}: {error}\n"
            "This is an internal error: run again with --debug, and please report the traceback.",
            err=True,
        )
    sys.exit(status)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print our warnings as one line, without their position in the code, and a library's as Python does."""
    if Path(filename).is_relative_to(Path(__file__).parents[2]):
        analysis_commands.WARNED.add(str(message))
        click.echo(f"warning: {message}", err=True)
    else:
        _show_library_warning(message, category, filename, lineno, file, line)


def _status(error: BaseException) -> int:
    if isinstance(error, WorkbenchError):
        return error.exit_code
    return 3 if isinstance(error, MemoryError) or getattr(error, "errno", None) in _LACKS else 2
