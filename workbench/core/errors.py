"""Errors a user can meet. Each names the value that arrived, the accepted values, and a remedy.

The command line prints the message without a traceback and leaves with the error's ``exit_code``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WorkbenchError(Exception):
    """Base of every error the workbench raises on purpose; part of the work failed."""

    exit_code = 1


class InputError(WorkbenchError, ValueError):
    """The request itself was wrong: a value, a shape, a file's content."""

    exit_code = 2


class UnknownName(InputError):
    """A name that is not in a known list; the message offers the nearest ones."""

    def __init__(self, kind: str, name: object, choices: Iterable[str], hint: str = "") -> None:
        names = sorted(choices)
        near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
        if near:
            offer = "did you mean " + " or ".join(repr(match) for match in near) + "?"
        else:
            offer = "choose from " + ", ".join(names) if names else "none are known here"
        super().__init__(f"unknown {kind} {name!r}; {offer}" + (f" ({hint})" if hint else ""))


class NothingToMeasure(InputError):
    """An analysis that applies to no layer of the model, or that needs a model where there is only a file."""


class MissingResource(WorkbenchError):
    """This machine lacks something: a network, cached weights, Chrome, room on the disk."""

    exit_code = 3


class IncompleteCapture(WorkbenchError):
    """A capture that missed a layer, or that does not reproduce the module's own output."""
