"""Say which numbers changed: beside the recorded file, or beside another commit that runs on the same machine.

    python -m tests.numbers.compare [SECTION …]               # with base.parquet
    python -m tests.numbers.compare --with REV [SECTION …]    # with a commit: both run here, with one thread
    python -m tests.numbers.compare --record [--with REV]     # make base.parquet again, of the working tree or a commit
    python -m tests.numbers.compare --processor --with REV    # a commit that passes elsewhere fails on this processor

Some numbers hang on rounding: an angle between two nearly equal spans, an eigenvector of a nearly double eigenvalue, a
z over two draws that nearly agree. How far rounding alone moves each number stands beside it in the recorded file: it
holds the farthest that runs in other batches and on other kernels were from it. Two commits on one machine round alike.
A processor whose kernels add in yet another order is added with ``--processor``: it runs a commit whose numbers are
known to be right on the others, so that nothing but the processor can have moved them, and says how far it moved what.

Rows are matched by what they are rows of, not by their order. What was renamed on purpose stands in ``names.csv``, what
changed on purpose in ``changes.csv``, with its reason; both are kept apart from what must not change. Columns:

``names.csv``    where, old, new, analysis: ``column`` renames a column (to nothing: drops it), a column's name (metric,
                 statistic, convention, model, error, …) renames its values, and "column=value" as the new name moves
                 a value to another column. ``analysis``, ``argument``, ``argument.NAME``, ``option``, ``option.NAME``,
                 ``function``, ``mechanism``, ``variant``, ``variant option``, ``site`` and ``part`` say what the
                 recorder must call; it records under the old name. The column ``analysis``, by the name in
                 `record.OPTIONS`, limits a row to one. Of several names for an old one the newest stands first.
``changes.csv``  section, source, analysis, case, metric, reason: which rows are another number now; empty means any.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from tests.numbers import record

BASE = record.HERE / "base.parquet"
CHANGES = record.HERE / "changes.csv"
ROUNDING = " rounding"
"""What columns end in that say how far rounding alone moves a number."""
CASE = ["section", "source", "analysis", "case"]


ROUNDINGS: tuple[tuple[int, dict[str, str]], ...] = (
    (1, {}),
    (8, {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41",
         "OPENBLAS_CORETYPE": "Nehalem"}),
)  # fmt: skip
"""Batch sizes and settings of the kernels that change nothing but how sums are rounded."""
MARGIN = 30.0
"""How many times farther than in those runs rounding may move a number on a machine that nobody has seen."""


class Tolerance(NamedTuple):
    """How far two numbers may be apart: a share of the larger, or a share of the largest of their metric and case."""

    relative: float
    floor: float


SAME = Tolerance(1e-12, 1e-12)
"""Of two commits on one machine, and of fixed float64 operands anywhere."""
END_TO_END = Tolerance(1e-5, 1e-5)
"""Of a forward pass in float32 on another machine, whose kernels add in another order."""


def renamed(base: pd.DataFrame) -> pd.DataFrame:
    """The rows of another commit by the names of this one."""
    frame = base.copy()
    moves: list[tuple[pd.Series, str, str, str]] = []
    for name in record.names():
        if name.where in frame and name.where not in record.PLACE[:-1]:
            of = frame["analysis"] == name.analysis if name.analysis else pd.Series(True, frame.index)
            here = of & (base[name.where] == name.old).fillna(False)
            column, equals, value = name.new.rpartition("=")
            moves.append((here, name.where, column if equals else name.where, value))
    for here, old, new, value in reversed(moves):  # the newest of several names has the last word
        if new not in frame:
            frame[new] = pd.Series(pd.NA, frame.index, dtype="string")
        if new != old:
            frame.loc[here, old] = pd.NA
        frame.loc[here, new] = value or pd.NA
    columns = {name.old: name.new for name in record.names() if name.where == "column" and name.old in frame}
    return frame.drop(columns=[old for old, new in columns.items() if not new]).rename(columns=columns)


def differences(base: pd.DataFrame, now: pd.DataFrame, loose: Tolerance = END_TO_END) -> pd.DataFrame:
    """Rows that differ, the worst first: where, which number, before, after, and how many times the tolerance.

    Rows of a case that only one side has count as infinitely far apart; cases that only ``now`` has are new, and none.
    Numbers of fixed operands are held to `SAME`, the others to ``loose``. NaN equals NaN. Where ``base`` says how far
    rounding moves a number, it may move `MARGIN` times as far.
    """
    base = renamed(base)
    cases = pd.MultiIndex.from_frame(base[CASE])
    now = now[pd.MultiIndex.from_frame(now[CASE]).isin(cases)]
    numbers = [name for name in record.NUMBERS if name in base and name in now]
    key = _key(base)
    sides = [_keyed(side, key) for side in (base, now)]
    both = sides[0].merge(
        sides[1], on=[*key, "occurrence"], how="outer", suffixes=("", " now"), indicator=True
    )
    both = both[~_intended(both)]
    fixed = both["section"].isin(record.FIXED).to_numpy()
    relative = np.where(fixed, SAME.relative, loose.relative)
    floor = np.where(fixed, SAME.floor, loose.floor)
    found = []
    for number in numbers:
        before, after = (both[name].to_numpy(float) for name in (number, f"{number} now"))
        peers = ["value", "null_mean", "null_low", "null_high"] if number != "z" else ["z"]
        largest = both[[peer for peer in peers if peer in numbers]].abs().replace(np.inf, np.nan).max(axis=1)
        largest = largest.groupby([both[name] for name in (*CASE, "metric")], dropna=False).transform("max")
        size = np.fmax(abs(before), abs(after))
        allowed = np.fmax(relative * np.where(np.isfinite(size), size, 0), floor * largest.to_numpy(float))
        if (rounding := f"{number}{ROUNDING}") in both:
            allowed = np.fmax(allowed, MARGIN * both[rounding].to_numpy(float))
        with np.errstate(invalid="ignore", divide="ignore"):
            times = abs(after - before) / allowed
        same = (before == after) | (np.isnan(before) & np.isnan(after))
        times = np.where(same | np.isposinf(allowed), 0.0, np.where(np.isfinite(times), times, np.inf))
        far = (times > 1) & (both["_merge"] == "both").to_numpy()
        found.append(
            both.loc[far, key].assign(number=number, before=before[far], after=after[far], times=times[far])
        )
    for side, word in (("left_only", "gone"), ("right_only", "new")):
        lone = both[both["_merge"] == side]
        columns = ("value", "value now") if "value" in numbers else (numbers[0], f"{numbers[0]} now")
        found.append(
            lone[key].assign(number=word, before=lone[columns[0]], after=lone[columns[1]], times=np.inf)
        )
    return pd.concat(found).sort_values("times", ascending=False, kind="stable", ignore_index=True)


def _key(frame: pd.DataFrame) -> list[str]:
    """The columns that say what a row is a row of."""
    return [name for name in frame if name.removesuffix(ROUNDING) not in record.NUMBERS]


def _beside(base: pd.DataFrame, now: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Rows of one key beside one another; the numbers of ``now`` are called so."""
    sides = [_keyed(side, key) for side in (base, now)]
    return sides[0].merge(
        sides[1], on=[*key, "occurrence"], how="outer", suffixes=("", " now"), indicator=True
    )


def _keyed(frame: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """The frame with its key as text, and which of several rows with one key each is."""
    frame = frame.reindex(columns=[*key, *(name for name in frame if name not in key)])
    texts = {name: frame[name].astype("string").fillna("").astype(str) for name in key}
    frame = frame.assign(**texts)
    return frame.assign(occurrence=frame.groupby(key, sort=False).cumcount())


def _intended(rows: pd.DataFrame) -> np.ndarray:
    """Which rows changed on purpose."""
    chosen = np.zeros(len(rows), dtype=bool)
    with CHANGES.open(encoding="utf-8", newline="") as file:
        for change in csv.DictReader(file):
            where = {name: value for name, value in change.items() if name != "reason" and value}
            if not change["reason"] or not where:
                raise ValueError(
                    f"{CHANGES.name}: a change needs a reason, and says where it is; got {change}"
                )
            chosen |= np.logical_and.reduce([rows[name] == value for name, value in where.items()])
    return chosen


def report(found: pd.DataFrame, most: int = 25) -> str:
    """Differences as a text: how many by case, then the worst."""
    if found.empty:
        return "no number changed"
    counts = found.groupby([*CASE, "metric"], sort=False).size().sort_values(ascending=False)
    lines = [f"{len(found)} numbers changed, of {len(counts)} metrics and cases:"]
    lines += [f"  {count:6} {' | '.join(map(str, place))}" for place, count in counts.head(most).items()]
    lines.append(f"the worst {min(most, len(found))}:")
    for row in found.head(most).to_dict("records"):
        place = [str(value) for name, value in row.items() if name not in _SAID and str(value)]
        moved = f"{row['number']} {row['before']!r} → {row['after']!r} ({row['times']:.3g} × tolerance)"
        lines.append(f"  {moved}: {' | '.join(place)}")
    lines.append(
        f"renamed on purpose: {record.NAMES.name}; changed on purpose: {CHANGES.name}, with its reason"
    )
    return "\n".join(lines)


_SAID = ("number", "before", "after", "times")


def recorded(sections: Sequence[str] | None = None) -> pd.DataFrame:
    """The rows of the committed file, of some sections or all."""
    return chosen(pd.read_parquet(BASE), sections)


def chosen(frame: pd.DataFrame, sections: Sequence[str] | None) -> pd.DataFrame:
    """The rows that the recorder's sections of these names make."""
    if not sections:
        return frame
    of = pd.Series(False, frame.index)
    for name in sections:
        section, source = record.ROWS[name]
        of |= (frame["section"] == section) & ((frame["source"] == source) if source else True)
    return frame[of]


def run(
    tree: Path, file: Path, sections: Sequence[str], batch_size: int = 8, **settings: str
) -> pd.DataFrame:
    """What the recorder of this folder gives with the package of another tree, in a process with one thread."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")}
    subprocess.run(
        [sys.executable, str(record.HERE / "record.py"), str(file), *sections, "--batch-size", str(batch_size)],
        env=environment | single | settings | {"PYTHONPATH": str(tree)}, cwd=tree, check=True, stdout=sys.stderr,
    )  # fmt: skip
    frame = pd.read_parquet(file)
    package = Path(frame.attrs["package"])
    if package.parent.resolve() != tree.resolve():
        raise RuntimeError(f"the numbers of {tree} came from {package}, which Python found first")
    return frame


@contextmanager
def trees(revision: str | None) -> Generator[tuple[Path, Path]]:
    """A folder for files, and the tree of a commit; without one, the working tree."""
    ours = record.HERE.parents[1]

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(ours), *words], check=True, stdout=sys.stderr)

    with tempfile.TemporaryDirectory(prefix="numbers-") as folder:
        if revision is None:
            yield Path(folder), ours
            return
        tree = Path(folder) / "tree"
        git("worktree", "add", "--detach", str(tree), revision)
        try:
            yield Path(folder), tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def with_commit(revision: str, sections: Sequence[str]) -> pd.DataFrame:
    """Differences between a commit and the working tree, both run on this machine with one thread."""
    with trees(revision) as (folder, tree):
        before = run(tree, folder / "before.parquet", sections)
        after = run(record.HERE.parents[1], folder / "after.parquet", sections)
    return differences(before, after, SAME)


def base_of(revision: str | None) -> pd.DataFrame:
    """The numbers of a commit, or of the working tree, with how far rounding alone moves each."""
    with trees(revision) as (folder, tree):
        plain = run(tree, folder / "0.parquet", ())
        rest = [
            run(tree, folder / f"{number}.parquet", (), batch_size, **settings)
            for number, (batch_size, settings) in enumerate(ROUNDINGS, 1)
        ]
    return with_rounding(plain, rest)


def on_this_processor(revision: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The committed rows, with how far this processor moves the numbers of a commit that gives them elsewhere.

    And what was farther away than the rows allowed before.
    """
    with trees(revision) as (folder, tree):
        here = [
            run(tree, folder / f"{number}.parquet", (), batch_size, **settings)
            for number, (batch_size, settings) in enumerate([(8, {}), *ROUNDINGS])
        ]
    return widened(recorded(), here), differences(recorded(), here[0])


def widened(base: pd.DataFrame, others: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of ``base``, whose numbers may move as far as they are from it in the others; rows of one side stay."""
    named = renamed(base)
    key = _key(named)
    known = _keyed(named, key)
    intended = _intended(known)
    base = base.copy()
    for other in others:
        both = known.merge(
            _keyed(other, key), on=[*key, "occurrence"], how="left", suffixes=("", " now"), indicator=True
        )
        there = ~intended & (both["_merge"] == "both").to_numpy()
        for name in record.NUMBERS:
            before, after = (both[column].to_numpy(float) for column in (name, f"{name} now"))
            apart = np.where(there, _apart(before, after), 0.0)
            farther = np.fmax(base[f"{name}{ROUNDING}"].to_numpy(float), apart)
            base[f"{name}{ROUNDING}"] = farther.astype("float32")
    return base


def _apart(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """How far numbers are from one another; ∞ where a NaN comes or goes."""
    same = (before == after) | (np.isnan(before) & np.isnan(after))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, abs(after - before))
    return np.where(np.isnan(apart), np.inf, apart)


def with_rounding(base: pd.DataFrame, others: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of ``base`` with the farthest that each number is from it in the others; ∞ where a NaN comes or goes."""
    key = _key(base)
    places = pd.MultiIndex.from_frame(_keyed(base, key)[[*key, "occurrence"]])
    moved = {name: np.zeros(len(base)) for name in record.NUMBERS}
    for other in others:
        both = _beside(base, other, key).set_index([*key, "occurrence"])
        if len(both) != len(base) or not (both["_merge"] == "both").all():
            raise RuntimeError("rows come and go with the rounding; leave out what makes them")
        both = both.loc[places]
        for name, farthest in moved.items():
            before, after = (both[column].to_numpy(float) for column in (name, f"{name} now"))
            moved[name] = np.fmax(farthest, _apart(before, after))
    return base.assign(
        **{f"{name}{ROUNDING}": farthest.astype("float32") for name, farthest in moved.items()}
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Say which numbers changed.")
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"all unless named: {', '.join(record.SECTIONS)}"
    )
    parser.add_argument("--with", dest="revision", metavar="REV", help="a commit, in place of base.parquet")
    parser.add_argument(
        "--record", action="store_true", help="make base.parquet again, of that commit or of the working tree"
    )
    parser.add_argument(
        "--processor",
        action="store_true",
        help="let numbers move as far as this processor moves those of --with REV",
    )
    asked = parser.parse_args(arguments)
    if asked.processor:
        if not asked.revision:
            parser.error("--processor needs --with REV, a commit whose numbers are right on other processors")
        base, found = on_this_processor(asked.revision)
        base.to_parquet(BASE, index=False, compression="zstd")
        sys.stdout.write(f"{report(found)}\n{BASE}: {BASE.stat().st_size} bytes\n")
        return 0
    if asked.record:
        base_of(asked.revision).to_parquet(BASE, index=False, compression="zstd")
        sys.stdout.write(f"{BASE}: {BASE.stat().st_size} bytes\n")
        return 0
    if unknown := {*asked.sections} - {*record.SECTIONS}:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(record.SECTIONS)}")
    if asked.revision:
        found = with_commit(asked.revision, asked.sections)
    else:
        found = differences(recorded(asked.sections), record.record(asked.sections))
    sys.stdout.write(f"{report(found)}\n")
    return int(not found.empty)


if __name__ == "__main__":
    sys.exit(main())
