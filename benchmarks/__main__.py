"""Run every benchmark and print one table: `python -m benchmarks [NAME…]`."""

from __future__ import annotations

import importlib
import pkgutil
import platform
import sys

import benchmarks


def main(names: list[str]) -> None:
    found = sorted(
        module.name.removeprefix("bench_")
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if module.name.startswith("bench_")
    )
    unknown = sorted(set(names) - set(found))
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; choose from {', '.join(found)}")
    print(f"Python {platform.python_version()}, {platform.machine()}; medians of interleaved runs\n")
    print("| benchmark | measured | aim | detail |\n| --- | --- | --- | --- |")
    for name in names or found:
        for row in importlib.import_module(f"benchmarks.bench_{name}").run():
            print(f"| {row['benchmark']} | {row['ratio']} | {row['aim']} | {row['detail']} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
