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

import compileall
import hashlib
import importlib
import json
import os
import py_compile
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

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


def fails(folder: Path, tests: tuple[str, ...]) -> bool:
    """Whether one of the tests fails in the copy, or does not end."""
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        os.setsid()
        os.chdir(folder)
        sys.dont_write_bytecode = True
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        sys.path[:] = [str(folder), *(place for place in sys.path if place not in ("", str(ROOT)))]
        os.environ["PYTHONPATH"] = str(folder)
        import pytest

        os._exit(int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests])))
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if os.waitstatus_to_exitcode(status) in (4, 5):
                raise SystemExit(f"there are no such tests: {' '.join(tests)}")
            return status != 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


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
    known: dict[str, bool] = json.loads(FOUND.read_text()) if FOUND.is_file() else {}
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
            known[keys[one]] = fails(folder, one.tests)
            target.write_text(whole, encoding="utf-8")
            FOUND.write_text(json.dumps(known))
            print(
                f"{number} of {len(waiting)} {'noticed ' if known[keys[one]] else 'SURVIVES'} {one.name}",
                flush=True,
            )
    for one in gone:
        print(f"its line stands there {one.places()} times: {one.name}")
    for one in mutants:
        if one not in gone and not known[keys[one]]:
            print(f"survives: {one.name}")
    noticed = sum(known.get(keys[one], False) for one in mutants if one not in gone)
    print(
        f"{noticed} of {len(mutants)} mutants are noticed by the tests of their file ({noticed / len(mutants):.1%})"
    )
    return int(noticed < len(mutants))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
