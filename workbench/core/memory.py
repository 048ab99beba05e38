"""How much memory is free, asked before much of it is taken: a process that takes more is ended without a word."""

from __future__ import annotations

import psutil

from workbench.core.errors import InputError

SMALL = 2**28  # bytes that are taken without asking


def free_memory() -> int:
    """Bytes of the machine's memory that can be had without others having to give any."""
    return psutil.virtual_memory().available


def check_room(needed: int, what: str, instead: str) -> None:
    """Raise `InputError` where ``what`` takes more bytes than are free, saying what to do ``instead``."""
    if needed > SMALL and needed > (free := free_memory()):
        raise InputError(
            f"{what} would take {needed / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB of memory are free; {instead}"
        )
