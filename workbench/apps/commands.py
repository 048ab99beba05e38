"""The table of commands, which plug-ins join."""

from __future__ import annotations

import click

from workbench.core.errors import InputError
from workbench.core.plugins import Registry


def _check(name: str, command: object) -> click.Command:
    if not isinstance(command, click.Command):
        raise InputError(f"it is a {type(command).__name__}; give a command of click")
    return command


COMMANDS: Registry[click.Command] = Registry({}, "workbench.commands", _check)
"""Commands by name; `workbench.apps.cli` adds ours."""
