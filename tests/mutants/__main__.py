"""`make mutants`: the library with one thing wrong at a time, for which a test must fail.

    python -m tests.mutants [WORD …]      those whose file, test or line has one of the words; all without
    python -m tests.mutants --sample 10   so many of all, others with every commit: what a change must pass
    python -m tests.mutants --random 200 --seed 3 [WORD …]   drawn from the code (`drawn.py`), of files with a word

`listed.txt` holds them: a file and its tests, then a line as it is and as it is changed. What was found is kept in
``.venv/mutants.json`` by the content of file and tests, so that a run goes on where it was stopped, and looks again at
what has changed. A copy of the repository is changed, never the repository; each mutant has a process, forked when
torch and its like are imported, in which pytest runs. A test that does not end is a failure too.
"""

from __future__ import annotations

import ast
import compileall
import hashlib
import importlib
import inspect
import json
import os
import py_compile
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.drawn import drawn

ROOT = Path(__file__).parents[2]
LISTED = Path(__file__).with_name("listed.txt")
FOUND = ROOT / ".venv" / "mutants.json"
SECONDS = 240
EARLY = (
    "torch", "torchvision", "timm", "transformers", "scipy.stats", "sklearn.metrics", "pandas", "pyarrow.parquet",
    "plotly.graph_objects", "pydantic", "hypothesis", "pytest",
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One line that is changed, and the tests that are to notice."""

    file: str
    tests: tuple[str, ...]
    old: str
    new: str

    @property
    def name(self) -> str:
        """File and change on one line."""
        return f"{self.file}: {self.old}  →  {self.new}"

    @property
    def key(self) -> str:
        """A hash of all that the answer depends on, as far as it lies in the file and its tests."""
        parts = [self.old, self.new, (ROOT / self.file).read_text(encoding="utf-8")]
        parts += [(ROOT / test.partition("::")[0]).read_text(encoding="utf-8") for test in self.tests]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def names(self) -> frozenset[str]:
        """Return the names of the functions and classes around the line."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        if not self.file.endswith(".py"):
            return frozenset()
        number = [line.strip() for line in text.split("\n")].index(self.old) + 1
        kinds = ast.FunctionDef | ast.ClassDef
        around = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
        around = [node.name for node in around if node.lineno <= number <= (node.end_lineno or 0)]
        return frozenset(name.strip("_") for name in around)

    def places(self) -> int:
        """How often the line stands in the file: once, or the list is to be mended."""
        lines = (ROOT / self.file).read_text(encoding="utf-8").split("\n")
        return [line.strip() for line in lines].count(self.old)

    def applied(self, text: str) -> str:
        """The file with the change."""
        lines = text.split("\n")
        place = [line.strip() for line in lines].index(self.old)
        line = lines[place]
        lines[place] = line[: len(line) - len(line.lstrip())] + self.new
        return "\n".join(lines)


def listed() -> list[Mutant]:
    """The list: ``@ FILE TEST…``, then pairs of ``- line`` and ``+ line``."""
    found: list[Mutant] = []
    file, tests, old = "", [], ""
    for line in LISTED.read_text(encoding="utf-8").splitlines():
        mark, _, rest = line.partition(" ")
        if mark == "@":
            file, *tests = rest.split()
        elif mark == "-":
            old = rest
        elif mark == "+":
            found.append(Mutant(file, tuple(tests), old, rest))
    return found


def copy(folder: Path) -> None:
    """What the tests need of the repository, compiled so that a changed file is seen by its content."""
    for name in ("workbench", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.name not in ("workbench", "tests", ".git", "figures", "site", "dist"):
            (folder / path.name).symlink_to(path)
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(folder / "workbench", quiet=2, invalidation_mode=mode)


def failing(folder: Path, tests: tuple[str, ...], names: frozenset[str] = frozenset()) -> str:
    """Return the first test that fails in the copy, or does not end; empty where all pass.

    Tests that contain one of the names run first.
    """
    report = folder / "report"
    report.write_text("does not end\n", encoding="utf-8")
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        os.setsid()
        os.chdir(folder)
        sys.dont_write_bytecode = True
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        sys.path[:] = [str(folder), *(place for place in sys.path if place not in ("", str(ROOT)))]
        os.environ["PYTHONPATH"] = str(folder)
        import pytest

        status = int(
            pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests], plugins=[Run(report, names)])
        )
        os._exit(status)
    until = time.monotonic() + 5 * SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if os.waitstatus_to_exitcode(status) in (4, 5):
                raise SystemExit(f"there are no such tests: {' '.join(tests)}")
            return "" if status == 0 else report.read_text(encoding="utf-8").splitlines()[-1]
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "does not end"


class Run:
    """Plug-in of pytest: order the tests, and write the name of a test or file that fails to a file."""

    def __init__(self, report: Path, names: frozenset[str]) -> None:
        self.report, self.names = report, names

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        words = {item: {*re.findall(r"\w+", inspect.getsource(item.function))} for item in items}
        items.sort(key=lambda item: not self.names & words[item])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and getattr(report, "outcome", "") != "rerun":
            self.report.write_text(f"{report.nodeid}\n", encoding="utf-8")

    def pytest_collectreport(self, report: Any) -> None:
        self.pytest_runtest_logreport(report)


def chosen(words: list[str]) -> list[Mutant]:
    """Those of the list that are asked for."""
    if words[:1] == ["--random"]:
        seed = int(words[3]) if words[2:3] == ["--seed"] else 0
        return [Mutant(*parts) for parts in drawn(int(words[1]), seed, words[4:])]
    mutants = listed()
    if words[:1] == ["--sample"]:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        return random.Random(head.stdout).sample(mutants, int(words[1]))
    return [one for one in mutants if not words or any(word in f"{one.name} {one.tests}" for word in words)]


def main(words: list[str]) -> int:
    """Run what is not known yet, and print the score; the status is 1 where a mutant survives."""
    mutants = chosen(words)
    known: dict[str, str] = json.loads(FOUND.read_text()) if FOUND.is_file() else {}
    gone = [one for one in mutants if one.places() != 1]
    keys = {one: one.key for one in mutants}  # of now: whoever edits meanwhile is looked at by the next run
    waiting = [one for one in mutants if keys[one] not in known and one not in gone]
    if waiting:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        for name in EARLY:
            importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="workbench-mutants-") as place:
        folder = Path(place)
        if waiting:
            copy(folder)
        for number, one in enumerate(waiting, 1):
            target = folder / one.file
            whole = target.read_text(encoding="utf-8")
            target.write_text(one.applied(whole), encoding="utf-8")
            test = failing(folder, one.tests, one.names())
            target.write_text(whole, encoding="utf-8")
            known[keys[one]] = test
            FOUND.write_text(json.dumps(known))
            verdict = f"noticed by {test}:" if test else "SURVIVES"
            print(f"{number} of {len(waiting)} {verdict} {one.name}", flush=True)
        tests = {known[keys[one]] for one in waiting if "::" in known[keys[one]]}
        while unsound := failing(folder, tuple(sorted(tests))) if tests else "":
            print(f"fails without a change too: {unsound}", flush=True)
            known = {key: test for key, test in known.items() if test != unsound}
            tests -= {unsound}
        FOUND.write_text(json.dumps(known))
    for one in gone:
        print(f"its line stands there {one.places()} times: {one.name}")
    asked = [one for one in mutants if one not in gone]
    for one in asked:
        if not known.get(keys[one]):
            print(f"{'survives' if keys[one] in known else 'not known'}: {one.name}")
    rooms: dict[str, list[bool]] = {}
    for one in asked:
        rooms.setdefault(one.file.split("/")[1], []).append(bool(known.get(keys[one])))
    for room, verdicts in sorted(rooms.items()):
        print(f"{room}: {sum(verdicts)} of {len(verdicts)}")
    noticed = sum(map(sum, rooms.values()))
    print(
        f"{noticed} of {len(mutants)} mutants are noticed by the tests of their file ({noticed / len(mutants):.1%})"
    )
    return int(noticed < len(mutants))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
