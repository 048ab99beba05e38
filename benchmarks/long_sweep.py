"""50 000 images through a sweep, stopped by the clock and by ``kill -9``: `python -m benchmarks.long_sweep PLACE`.

Writes the images below PLACE, sweeps them with the command that a person would type, goes on twice, and prints what
it took as the table of `python -m benchmarks`. Ten minutes and more of one core, so `make bench` leaves it out.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.core.children import python

if TYPE_CHECKING:
    from workbench.runs.sweep.plan import PlannedAnalysis

MODELS, ANALYSES = ["bundled:digits-vit"], ["token-similarity", "attention-map"]
IMAGES, SIZE, SEED = 50_000, 16, 0
LOOK_SECONDS = 2.0


def main() -> None:
    """Run what the command line asks for."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("place", type=Path, help="folder for images, sweep and memory.csv")
    asked.add_argument("-n", type=int, default=IMAGES, help="images [%(default)s]")
    asked.add_argument(
        "-m", "--model", nargs="+", default=MODELS, help="as in `workbench sweep` [%(default)s]"
    )
    asked.add_argument(
        "-a", "--analysis", nargs="+", default=ANALYSES, help="as in `workbench sweep` [%(default)s]"
    )
    asked.add_argument("--workers", type=int, default=1)
    asked.add_argument("--batch-size", type=int, default=32)
    asked.add_argument("--max-time", type=int, default=120, help="seconds of the first start [%(default)s]")
    asked.add_argument(
        "--kill", type=int, default=120, help="seconds till the second is killed [%(default)s]"
    )
    asked.add_argument("--out", default="sweep", help="name of the sweep's folder below PLACE")
    given = asked.parse_args()
    images, out = given.place / "images", given.place / given.out
    write_images(images, given.n)
    command = python(
        "-m", "workbench", "sweep", "run", *chain.from_iterable(("-m", name) for name in given.model),
        "-i", f"imagenet:{images}", "-n", "all", *chain.from_iterable(("-a", name) for name in given.analysis),
        "-s", "attention-map.null_samples=0", "--batch-size", str(given.batch_size), "-j", str(given.workers),
        "-o", str(out),
    )  # fmt: skip
    starts = [
        _start(out, [*command, "--max-time", f"{given.max_time}s"]),
        _start(out, command, kill=given.kill),
        _start(out, command),
    ]
    _keep(given.place / f"{given.out}-memory.csv", starts)
    print("| question | measured | detail |\n| --- | --- | --- |")
    for question, measured, detail in chain(_run_rows(given.n, starts, out), _folder_rows(out)):
        print(f"| {question} | {measured} | {detail} |", flush=True)


def write_images(folder: Path, n: int) -> None:
    """``n`` digits moved, turned and scaled, a PNG each in the folder of its class; those that are there are kept.

    What becomes of image i depends on `SEED` and i alone.
    """
    from PIL import Image
    from skimage.transform import AffineTransform, warp

    from workbench.data.pools import digits_split

    digits = digits_split("train")
    for label in set(digits.labels.tolist()):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
    middle, small = (SIZE - 1) / 2, digits.raw.shape[-1]
    for number in range(n):
        rng = np.random.default_rng((SEED, number))
        chosen = int(rng.integers(len(digits.raw)))
        path = folder / str(int(digits.labels[chosen])) / f"{number:05d}.png"
        if path.is_file():
            continue
        scale, angle = rng.uniform(0.8, 1.1) * SIZE / small, np.deg2rad(rng.uniform(-20, 20))
        centre = AffineTransform(translation=[-(small - 1) / 2] * 2)
        turn = AffineTransform(scale=scale, rotation=angle)
        move = AffineTransform(translation=middle + rng.uniform(-1.5, 1.5, 2))
        drawn = warp(digits.raw[chosen] / 16, (centre + turn + move).inverse, output_shape=(SIZE, SIZE))
        Image.fromarray(np.round(drawn * 255).astype(np.uint8)).save(path)


def _start(out: Path, command: list[str], kill: float | None = None) -> dict[str, Any]:
    """Run the sweep, looking at its memory and its parts; with ``kill``, end it as a power cut would."""
    import psutil

    began, looks, ended = time.perf_counter(), [], "by itself"
    running = psutil.Popen(command, stdout=subprocess.PIPE, text=True)
    while running.poll() is None:
        since = time.perf_counter() - began
        try:
            workers = [child.memory_info().rss for child in running.children()]
            times, rss = running.cpu_times(), running.memory_info().rss
        except psutil.NoSuchProcess:
            break
        looks.append(
            {
                "seconds": round(since, 1),
                "cpu": round(times.user + times.system, 1),
                "parts": sum(1 for _ in out.glob("parts/*/*/*.parquet")),
                "parent": rss,
                "worker": max(workers, default=None),
            }
        )
        if kill is not None and since > kill:
            running.kill()
            ended = "by kill -9"
        time.sleep(LOOK_SECONDS)
    running.communicate()
    about = {"ended": ended, "status": running.returncode, "seconds": time.perf_counter() - began}
    return about | {"looks": looks}


def _keep(path: Path, starts: list[dict[str, Any]]) -> None:
    rows = [{"start": number} | look for number, start in enumerate(starts, 1) for look in start["looks"]]
    with path.open("w", newline="", encoding="utf-8") as handle:
        table = csv.DictWriter(handle, [*rows[0]])
        table.writeheader()
        table.writerows(rows)


def _run_rows(n: int, starts: list[dict[str, Any]], out: Path) -> list[tuple[str, str, str]]:
    from workbench.runs.sweep.sweep_folder import SweepFolder

    plan, saved = SweepFolder(out).plan()
    seconds = sum(start["seconds"] for start in starts)
    measuring = sum(part["seconds"] for part in saved["parts"].values())
    cpu = sum(start["looks"][-1]["cpu"] for start in starts)
    listed = "; ".join(
        f"{start['seconds']:.0f} s, ended {start['ended']} ({start['status']})" for start in starts
    )
    asked = n * len(plan.models) * len(plan.analyses)
    size = f"{n} images × {len(plan.models)} models × {len(plan.analyses)} analyses"
    rows = [
        (
            "the whole run",
            f"{seconds / 60:.1f} min; {cpu:.0f} CPU s of the parent",
            f"{len(starts)} starts: {listed}",
        ),
        (
            "images × analyses per second",
            f"{asked / seconds:.0f}; {asked / measuring:.0f} of measuring",
            size,
        ),
    ]
    for who in ("parent", "worker"):
        for number, start in enumerate(starts, 1):
            memory = [look[who] / 2**20 for look in start["looks"] if look[who] is not None]
            if len(memory) >= 8:
                tops = " → ".join(f"{max(part):.0f}" for part in np.array_split(memory, 4))
                rows.append(
                    (f"memory of the {who}, start {number}", f"{tops} MiB", "largest of each quarter")
                )
    return rows


def _folder_rows(out: Path) -> list[tuple[str, str, str]]:
    """What it takes to plan, to look, to read and to resume, in this process."""
    from workbench.runs.settings import RunSettings
    from workbench.runs.sweep import read_sweep, sweep, sweep_status
    from workbench.runs.sweep.plan import make_plan
    from workbench.runs.sweep.sweep_folder import SweepFolder

    plan, _ = SweepFolder(out).plan()
    specs, inputs = [model.spec for model in plan.models], plan.models[0].inputs
    names = [(one.name, _given(one)) for one in plan.analyses]
    files = [path for path in out.rglob("*") if path.is_file()]
    size, manifest = sum(path.stat().st_size for path in files), (out / "manifest.json").stat().st_size
    counts = set()

    def read() -> None:
        for name, _ in names:
            frame = read_sweep(out, name, specs[0])
            counts.add(frame.attrs["provenance"]["inputs"]["n"])

    def resume() -> None:
        sweep(specs, inputs, names, out, n="all", batch_size=plan.settings.batch_size)

    first, again = _seconds(read), _median(read)
    settings = RunSettings(n="all", batch_size=plan.settings.batch_size)
    planning = _median(lambda: make_plan([(spec, inputs) for spec in specs], names, settings))
    return [
        ("the folder", f"{size / 2**20:.1f} MiB", f"{len(files)} files, manifest {manifest / 2**20:.1f} MiB"),
        ("planning", planning, "names are listed, no image is read"),
        ("`sweep status`", _median(lambda: sweep_status(out)), f"{sweep_status(out)}".rpartition(": ")[2]),
        (
            "reading a model's results",
            f"{first:.2f} s of CPU, then {again}",
            f"{len(names)} analyses of {', '.join(map(str, counts))} images; the first merges the parts",
        ),
        ("resuming when all is done", _median(resume), "plan, and sha256 of every part"),
    ]


def _given(analysis: PlannedAnalysis) -> dict[str, Any]:
    """The options that were asked for: those that the label names."""
    named = [pair.partition("=")[0] for pair in analysis.label.split(":")[1:]]
    return {name: analysis.options[name] for name in named}


def _seconds(call: Callable[[], Any]) -> float:
    """CPU seconds of this process, so that what else the machine does weighs little."""
    began = time.process_time()
    call()
    return time.process_time() - began


def _median(call: Callable[[], Any]) -> str:
    return f"{statistics.median(_seconds(call) for _ in range(3)):.2f} s of CPU"


if __name__ == "__main__":
    main()
