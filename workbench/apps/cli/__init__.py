"""The command line: `cli` is the tree of commands, `main` the entry point."""

from workbench.apps.cli.command_tree import cli, main

__all__ = ["cli", "main"]
