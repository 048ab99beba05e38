"""Run every benchmark and print one table: `python -m benchmarks [NAME…] [--resume]`.

Rows are printed as they are measured. A benchmark that takes minutes lists its rows one by one (``ROWS``): they are
kept in ``build/benchmarks.json``, and ``--resume`` goes on after the last one that was measured there.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import benchmarks

KEPT = Path("build/benchmarks.json")


def main(names: list[str], resume: bool = False) -> None:
    found = sorted(
        module.name.removeprefix("bench_")
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if module.name.startswith("bench_")
    )
    unknown = sorted(set(names) - set(found))
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; choose from {', '.join(found)}")
    print(f"Python {platform.python_version()}, {platform.machine()}; medians of interleaved runs\n")
    print("| benchmark | measured | aim | detail |\n| --- | --- | --- | --- |", flush=True)
    for name in names or found:
        for row in _rows(name, resume):
            print(f"| {row['benchmark']} | {row['ratio']} | {row['aim']} | {row['detail']} |", flush=True)


def _rows(name: str, resume: bool) -> Iterator[dict[str, Any]]:
    """The rows of a benchmark, each as soon as it is there."""
    module = importlib.import_module(f"benchmarks.bench_{name}")
    if not hasattr(module, "ROWS"):
        yield from module.run()
        return
    kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    own = kept.setdefault(name, {}) if resume else kept.update({name: {}}) or kept[name]
    for place, measure in module.ROWS.items():
        if place not in own:
            own[place] = measure()
            KEPT.parent.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps(kept, indent=1))
        yield own[place]


if __name__ == "__main__":
    given = sys.argv[1:]
    main([name for name in given if name != "--resume"], "--resume" in given)
