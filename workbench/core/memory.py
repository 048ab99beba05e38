"""Free memory, checked before large allocations: the system kills a process that takes more."""

from __future__ import annotations

import psutil

from workbench.core.errors import InputError

SMALL = 2**28  # bytes that are taken without asking


def free_memory() -> int:
    """Return the bytes of the machine's memory that are available without swapping."""
    return psutil.virtual_memory().available


def check_room(needed: int, what: str, instead: str) -> None:
    """Raise `InputError` where ``what`` takes more bytes than are free; ``instead`` is the advice in the error."""
    if needed > SMALL and needed > (free := free_memory()):
        raise InputError(
            f"{what} would take {needed / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB of memory are free; {instead}"
        )
