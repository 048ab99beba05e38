"""The command line: `cli` is the tree of commands, `main` what the installed command calls."""

from workbench.apps.cli.command import cli, main

__all__ = ["cli", "main"]
