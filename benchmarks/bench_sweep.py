"""Sweeps: memory against inputs, two workers beside one, what a shard costs beyond measuring, and a soak with kills."""

from __future__ import annotations

import random
import resource
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from workbench.core.children import python

MODEL, INPUTS = "bundled:digits-vit", "bundled:digits-train"
ANALYSES = ("token-similarity", ("gram-spectrum", {"null_samples": 0}))
FEW, MANY, ROUNDS = 64, 1024, 3
KILLS, SOAK_INPUTS, SOAK_SHARDS = 3, 1024, 64
_PEAK = "from benchmarks.bench_sweep import peak; print(peak({n}))"


def run() -> list[dict[str, Any]]:
    """One row for each question; folders are temporary."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        return [_memory(), _shards(folder), _workers(folder), _soak(folder)]


def _sweep(out: Path, **asked: Any) -> tuple[float, float]:
    """Seconds and CPU seconds of one sweep."""
    from workbench.runs.sweep import sweep

    shutil.rmtree(out, ignore_errors=True)
    wall, cpu = time.perf_counter(), time.process_time()
    status = sweep(MODEL, INPUTS, ANALYSES, out, **asked)
    assert status.left == status.failed == 0, status
    return time.perf_counter() - wall, time.process_time() - cpu


def peak(n: int) -> int:
    """Largest resident memory, in KiB, of this process after a sweep of so many inputs in one shard."""
    with tempfile.TemporaryDirectory() as place:
        _sweep(Path(place) / "sweep", n=n, shards=1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _memory() -> dict[str, Any]:
    found = {}
    for n in (FEW, MANY):  # processes of their own: a peak does not go down again
        command = python("-c", _PEAK.format(n=n))
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[n] = int(done.stdout.split()[-1])
    return {
        "benchmark": f"peak memory of a worker, {MANY} inputs against {FEW}",
        "ratio": f"{found[MANY] / found[FEW]:.3f}×",
        "aim": "≤ 1.05×",
        "detail": f"one shard, {found[FEW] / 1024:.0f} MiB with {FEW} inputs",
    }


def _shards(folder: Path) -> dict[str, Any]:
    n, shards, times = 128, 16, []
    for _ in range(ROUNDS):
        one, many = (_sweep(folder / "shards", n=n, shards=count)[1] for count in (1, shards))
        times.append((many - one) / (2 * (shards - 1)))
    return {
        "benchmark": "a shard beyond its measuring",
        "ratio": f"{1000 * statistics.median(times):.0f} ms of CPU",
        "aim": "≤ 100 ms",
        "detail": f"{n} inputs, two analyses in {shards} shards against 1; median of {ROUNDS}",
    }


def _workers(folder: Path) -> dict[str, Any]:
    n, ratios = 256, []
    _sweep(folder / "warm", n=16, shards=2, workers=2)  # processes start once
    for _ in range(ROUNDS):
        one, two = (_sweep(folder / "workers", n=n, shards=8, workers=count)[0] for count in (1, 2))
        ratios.append(one / two)
    return {
        "benchmark": "two workers beside one",
        "ratio": f"{statistics.median(ratios):.2f}× as fast",
        "aim": "≥ 1.7×",
        "detail": f"{n} inputs, two analyses, 8 shards, processes started before; median of {ROUNDS}",
    }


def _soak(folder: Path) -> dict[str, Any]:
    """Kill workers at random, a few times, going on as often as it takes; then compare with one process."""
    import numpy as np

    from workbench.runs.sweep import read_sweep, sweep

    out, whole, over = folder / "soak", folder / "whole", threading.Event()
    killed: list[int] = []
    killer = threading.Thread(target=_kill_workers, args=(out, over, killed), daemon=True)
    killer.start()
    starts, status = 0, None
    while status is None or status.failed or status.left:
        starts += 1
        assert starts < 50, status
        status = sweep(MODEL, INPUTS, ANALYSES, out, n=SOAK_INPUTS, shards=SOAK_SHARDS, workers=2)
    over.set()
    killer.join()
    _sweep(whole, n=SOAK_INPUTS, shards=1)
    apart = 0.0
    for name in ("token-similarity", ANALYSES[1][0]):
        one, other = (read_sweep(path, name)["value"].to_numpy() for path in (out, whole))
        apart = max(apart, float(np.nanmax(np.abs(one - other) / np.maximum(np.abs(other), 1e-12))))
    return {
        "benchmark": "soak: numbers after workers were killed at random",
        "ratio": f"{apart:.1e} apart",
        "aim": "≤ 1e-9",
        "detail": f"{SOAK_INPUTS} inputs in {SOAK_SHARDS} shards, {len(killed)} workers killed, {starts} starts",
    }


def _kill_workers(out: Path, over: threading.Event, killed: list[int]) -> None:
    """Kill one of joblib's processes after a moment in which one is at work, `KILLS` times at most."""
    import psutil

    rng = random.Random(0)
    while len(killed) < KILLS and not over.wait(rng.uniform(0.2, 2)):
        workers = [
            child
            for child in psutil.Process().children(recursive=True)
            if "LokyProcess" in " ".join(child.cmdline())
        ]
        if workers and [*out.glob(".running/*")]:
            chosen = rng.choice(workers)
            chosen.kill()
            killed.append(chosen.pid)
