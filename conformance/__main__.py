"""Make the conformance table: `python -m conformance [--only TYPE…] [--red] [--unbuilt] [--older] [--again [TYPE…]]`.

Rows that are there for the installed versions stay, so that a run goes on where another stopped; `--older` makes those
again that other sources of the captures made, and goes on as well; `--stream` fills the columns of resid_mid only.
Models run in a process of their own that is started again when one of them takes it down, and given up after a time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from typing import Any

SHOWN = (
    "why",
    "model",
    "input",
    "size",
    "layers",
    "without_map",
    "softmaxes",
    "worst",
    "output",
    "reference",
    "head_out",
    "attn",
    "head_out_layers",
    "attn_layers",
    "refusal",
    "projections",
    "resid_mid",
    "resid_mid_layers",
    "resid_mid_refusal",
    "seconds",
)
SECONDS, MEMORY = 40, 9 << 30
"""What one model may take, of a processor's time and of memory."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", metavar="TYPE", help="these alone, and print their rows; writes nothing"
    )
    parser.add_argument("--library", choices=("transformers", "timm"), help="one library alone")
    parser.add_argument(
        "--red", action="store_true", help="try again what was neither exact nor without attention"
    )
    parser.add_argument("--unbuilt", action="store_true", help="try again what could not be built")
    parser.add_argument(
        "--older", action="store_true", help="make the rows again that other sources of captures made"
    )
    parser.add_argument("--again", nargs="*", metavar="TYPE", help="make these rows again, or all")
    parser.add_argument(
        "--stream", action="store_true", help="fill the columns of resid_mid in exact rows that lack them"
    )
    parser.add_argument("--page", action="store_true", help="write the page from the rows that are there")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
    elif options.only:
        try_some(options.only)
    elif options.stream:
        fill_stream()
    else:
        make(options)


def make(options: argparse.Namespace) -> None:
    """The whole table, a row at a time, each written as soon as it is there."""
    from conformance.row import code_of_captures
    from conformance.table import is_done, is_red, read_rows, write_page, write_rows

    rows = read_rows()
    if options.page:
        write_page(list(rows.values()), len(set(every_type()) - set(rows)))
        return
    from importlib.metadata import version

    versions = {name: version(name) for name in ("transformers", "timm", "torch")}
    versions["torch"] = versions["torch"].partition("+")[0]
    wanted = every_type(options.library)
    todo = []
    for key in wanted:
        row = rows.get(key)
        again = options.again is not None and (not options.again or key[1] in options.again)
        red = row is not None and (
            (options.red and is_red(row)) or (options.unbuilt and row["status"] == "not built")
        )
        older = row is not None and options.older and row["code"] != code_of_captures()
        if row is None or not is_done(row, versions) or again or red or older:
            todo.append(key)
    if options.library is None:
        rows = {key: row for key, row in rows.items() if key in set(wanted)}
        write_rows(rows.values())
    worker = Worker()
    for number, (library, name) in enumerate(todo):
        row = worker.row(library, name)
        rows = read_rows() | {(library, name): row}  # another run may write the other library's
        write_rows(rows.values())
        print(f"{number + 1}/{len(todo)} {library}:{name}: {row['status']} {row['why'][:160]}", flush=True)
    worker.stop()
    rows = read_rows()
    write_page(list(rows.values()), len(set(every_type()) - set(rows)))


def fill_stream() -> None:
    """The columns of resid_mid in exact rows that lack them, a row at a time; the others stay as they are."""
    from conformance.row import EXACT
    from conformance.table import read_rows, write_page, write_rows

    rows = read_rows()
    todo = [key for key, row in rows.items() if row["status"] == EXACT and not row["resid_mid"]]
    worker = Worker()
    for number, key in enumerate(todo):
        made = worker.row(*key, "stream")
        rows[key] |= {name: value for name, value in made.items() if name.startswith("resid_mid")}
        write_rows(rows.values())
        print(
            f"{number + 1}/{len(todo)} {':'.join(key)}: {rows[key]['resid_mid'] or made.get('why')}",
            flush=True,
        )
    worker.stop()
    write_page(list(rows.values()), len(set(every_type()) - set(rows)))


def every_type(library: str | None = None) -> list[tuple[str, str]]:
    """Every type of the installed libraries."""
    from conformance.models import timm_models, transformers_types

    found = []
    if library != "timm":
        found += [("transformers", name) for name in transformers_types()]
    if library != "transformers":
        found += [("timm", name) for name in timm_models()]
    return found


def try_some(names: list[str]) -> None:
    """Rows of a few types, printed."""
    from conformance.models import transformers_types
    from conformance.row import row

    known = set(transformers_types())
    quiet()
    for name in names:
        found = row("transformers" if name in known else "timm", name)
        said = {key: value for key, value in found.as_dict().items() if value not in ("", None)}
        print(
            "\n".join(
                [f"{name}: {found.status}", *(f"    {key}: {said[key]}" for key in SHOWN if key in said)]
            )
        )


class Worker:
    """A process that makes rows, started again whenever one ends it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def row(self, library: str, name: str, part: str = "all") -> dict[str, Any]:
        from conformance.row import NOT_BUILT, Row, version_of

        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "conformance", "--worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self.process.stdout is not None
            self.process.stdout.readline()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{library} {name} {part}\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], 30 * SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        self.process.kill()
        ended = self.process.wait()
        self.process = None
        why = (
            f"it ended its process ({ended})"
            if ready
            else f"it takes more than {SECONDS} seconds of a processor"
        )
        return Row(library, name, name, NOT_BUILT, why, version=version_of(library)).as_dict()

    def stop(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()


class TimeLimit(BaseException):
    """One model takes too long."""


def work() -> None:
    """Rows for the types that are written to standard input, as lines of JSON."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what models print is no answer
    quiet()
    from conformance.row import NOT_BUILT, Row, row, stream_columns, version_of

    def stop(*_: Any) -> None:
        raise TimeLimit

    signal.signal(signal.SIGPROF, stop)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        library, name, part = line.split()
        start = time.perf_counter()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            if part == "stream":
                print(json.dumps(stream_columns(library, name)), file=answers, flush=True)
                continue
            found = row(library, name)
        except (TimeLimit, MemoryError) as error:
            why = (
                f"it takes more than {SECONDS} seconds of a processor"
                if isinstance(error, TimeLimit)
                else "it takes too much memory"
            )
            found = Row(library, name, name, NOT_BUILT, why, version=version_of(library))
            found.seconds = round(time.perf_counter() - start, 1)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            gc.collect()
        print(json.dumps(found.as_dict()), file=answers, flush=True)


def quiet() -> None:
    """Let the libraries say nothing, fetch nothing, and share the machine."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import warnings

    warnings.simplefilter("ignore")
    import torch
    from transformers import logging

    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


if __name__ == "__main__":
    main()
