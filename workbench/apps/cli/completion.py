"""Completion of commands, options and known names in the shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from workbench.core.errors import InputError, MissingResource

NAME, VARIABLE = "workbench", "_WORKBENCH_COMPLETE"
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n'
    COMPREPLY=($(COMP_LINE="$COMP_LINE" COMP_POINT=$COMP_POINT %(complete_var)s=bash_complete $1))
}
complete -o default -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class Bash(BashComplete):
    """Completion that reads the whole line: bash splits words at : and =, which are part of our names."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the word at the cursor."""
        line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
        words = split_arg_string(line)[1:]
        return words, "" if line[-1:].isspace() or not words else words.pop()

    def complete(self) -> str:
        """Return the replacements for the text after the last : or = before the cursor; bash completes files."""
        words, typed = self.get_completion_args()
        start = max(typed.rfind(":"), typed.rfind("=")) + 1
        items = self.get_completions(words, typed)
        return "\n".join(item.value[start:] for item in items if item.type == "plain")

    def source(self) -> str:
        """Return the script; click's own checks the version of bash, which is not needed here."""
        return ShellComplete.source(self)


_SHELLS: dict[str, tuple[type[ShellComplete], str, str]] = {
    "bash": (Bash, "~/.local/share/bash-completion/completions/workbench", "it works in the next shell"),
    "zsh": (
        ZshComplete,
        "~/.zfunc/_workbench",
        "have `fpath+=~/.zfunc; autoload -Uz compinit && compinit` in ~/.zshrc, and open a new shell",
    ),
    "fish": (FishComplete, "~/.config/fish/completions/workbench.fish", "it works in the next shell"),
}


@click.command()
@click.argument("shell", required=False, type=click.Choice(list(_SHELLS)))
@click.option("--install", is_flag=True, help="Write the script to where the shell looks for it.")
def completion(shell: str | None, install: bool) -> None:
    """Complete commands, options and names in your shell. The script is printed, or installed.

    \b
    workbench completion bash --install
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in _SHELLS:
        raise InputError(
            f"SHELL names no shell that can be completed ({shell or 'nothing'}); say bash, zsh or fish"
        )
    kind, target, then = _SHELLS[shell]
    script = kind(click.get_current_context().find_root().command, {}, NAME, VARIABLE).source()
    if not install:
        click.echo(script)
        return
    path = Path(target).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script, encoding="utf-8")
    except OSError as error:
        raise MissingResource(f"cannot write {path}: {error.strerror or error}") from error
    click.echo(f"{path} written; {then}")
