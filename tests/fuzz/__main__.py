"""`make fuzz`: every reader in turn with ever new damage, for some minutes; what is no error of ours is reported.

python -m tests.fuzz [MINUTES] [READER …]
"""

from __future__ import annotations

import logging
import resource
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz import READERS

ROUND = 40  # examples of a reader before the next one has its turn
SLOW_SECONDS = 20.0
MEMORY = 12 * 2**30  # who asks for more than this gets an error, and the machine lives on


class _TimeIsUp(KeyboardInterrupt):
    """Ends a round, as Ctrl-C does: hypothesis takes any other exception for the reader's."""


def run(name: str, number: int, until: float) -> tuple[int, str]:
    """One round of one reader: how many examples it read, and the traceback of the least one that failed.

    The first failure is failed at once, since looking for the least one may take longer than the time ``until``.
    """
    read, count, failed = READERS[name], 0, False

    @seed(number)
    @settings(
        max_examples=ROUND,
        deadline=None,
        database=None,
        suppress_health_check=[*HealthCheck],
        phases=[Phase.generate, Phase.shrink],
    )
    @given(st.data())
    def once(data: Any) -> None:
        nonlocal count, failed
        if time.monotonic() > until and not failed:
            raise _TimeIsUp
        count += 1
        started = time.process_time()
        try:
            with tempfile.TemporaryDirectory(prefix="workbench-fuzz-") as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(data, Path(folder))
            assert time.process_time() - started < SLOW_SECONDS, "it took too long"
        except Exception as error:
            if not failed:
                print(f"\n{name} (round {number}): {error!r:.300}; looking for less", flush=True)
            failed = True
            raise

    try:
        once()
    except _TimeIsUp:
        pass
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return count, "".join(traceback.format_exception(error, limit=-6))
    return count, ""


def main(arguments: list[str]) -> int:
    """Run until the time is up; the status is 1 where anything was found."""
    minutes = float(arguments[0]) if arguments else 10.0
    names = arguments[1:] or list(READERS)
    logging.disable()  # libraries tell their own of every damaged file
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    counts, found = dict.fromkeys(names, 0), {}
    until, number = (
        time.monotonic() + 60 * minutes,
        int(time.time()),
    )  # other damage every time; a failure names it
    while time.monotonic() < until and len(found) < len(names):
        number += 1
        for name in names:
            if name in found or time.monotonic() > until:
                continue
            count, failure = run(name, number, until)
            counts[name] += count
            if failure:
                found[name] = failure
                print(f"\n=== {name} (round {number})\n{failure}", flush=True)
    for name in names:
        print(
            f"{name}: {counts[name]:,} files, {'an internal error' if name in found else 'no internal error'}"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
