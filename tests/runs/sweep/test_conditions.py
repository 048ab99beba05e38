"""Long runs under bad conditions: what is finished stays, what goes wrong is named, and resuming gives the numbers."""

import errno
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from PIL import Image

from tests.runs.sweep.conftest import MODEL, read, same_numbers
from workbench.apps import cli
from workbench.core.errors import InputError, MissingResource, WorkbenchError
from workbench.runs.sweep import parse_duration, running, tasks, workers


def exit_status(*words):
    with pytest.raises(SystemExit) as left:
        cli.main([str(word) for word in words])
    return left.value.code


def test_a_corrupt_image_is_skipped_counted_and_named(run, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(7):
        Image.new("L", (8, 8), number * 30).save(folder / f"{number}.png")
    (folder / "3.png").write_bytes(b"no picture")
    frames = []
    for shards in (1, 4):
        status = run(f"{shards}", inputs=f"images:{folder}", n=7, batch_size=2, shards=shards)
        frames.append(read(status))
        assert (status.failed, status.rows[0]["skipped"], status.rows[0]["inputs"]) == (0, 1, 6)
        assert any("unreadable images skipped: 1 (3.png:" in note for note in frames[-1].attrs["notes"])
    same_numbers(*frames)


def test_a_shard_of_corrupt_images_alone_is_no_failure(run, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(5):
        Image.new("L", (8, 8), number * 30).save(folder / f"{number}.png")
    asked = {"inputs": f"images:{folder}", "n": 5, "batch_size": 1, "shards": 5}
    (folder / "3.png").write_bytes(b"no picture")
    status = run(**asked)
    assert (status.done, status.failed, status.rows[0]["skipped"]) == (5, 0, 1)
    frame = read(status)
    assert frame.attrs["provenance"]["inputs"]["n"] == 4
    same_numbers(read(status), frame)


def test_an_analysis_with_nothing_to_measure_says_why_and_the_others_go_on(run):
    status = run(analyses=["robust-components", "token-similarity"], n=8)
    assert (status.done, status.failed) == (2, 2)
    for failure in status.failures.values():
        assert failure.startswith("robust-components: nothing to measure; layers 0-3 left out: ")


def break_shard(monkeypatch, shard, error, times=None):
    """Let the measuring of one shard fail, ``times`` times or always; returns the calls so far."""
    calls, whole = [], tasks._measure

    def measure(plan, task, *rest):
        calls.append(task.shard)
        if task.shard == shard and (times is None or calls.count(shard) <= times):
            raise error
        return whole(plan, task, *rest)

    monkeypatch.setattr(tasks, "_measure", measure)
    return calls


def test_a_failed_shard_is_tried_three_times_then_named_and_the_others_go_on(
    run, monkeypatch, tmp_path, capsys
):
    calls = break_shard(monkeypatch, 1, ZeroDivisionError("by nothing"))
    words = (
        *("sweep", "run", "-m", MODEL, "-i", "bundled:digits", "-n", 21, "-a", "token-similarity"),
        *("--shards", 3, "--batch-size", 4, "-o", tmp_path / "sweep"),
    )
    assert exit_status(*words) == 1
    printed = capsys.readouterr()
    assert "2 of 3 tasks done; 1 failed" in printed.out
    assert f"{MODEL}, token-similarity, shard 1 of 3: ZeroDivisionError: by nothing" in printed.err
    assert sorted(calls) == [0, 1, 1, 1, 2]
    monkeypatch.undo()
    status = run()
    assert (status.done, status.failed) == (3, 0)
    same_numbers(read(status), read(run("whole", shards=1)))


def test_a_shard_that_works_the_second_time_is_no_failure(run, monkeypatch):
    calls = break_shard(monkeypatch, 2, OSError(errno.EIO, "a disk that stutters"), times=1)
    assert run().failed == 0
    assert calls == [0, 1, 2, 2]


def test_a_request_that_is_wrong_is_not_tried_again(run, monkeypatch):
    calls = break_shard(monkeypatch, 0, InputError("no such layer"))
    status = run()
    assert calls == [0, 1, 2]
    assert list(status.failures.values()) == ["no such layer"]


def test_a_model_that_cannot_be_had_is_named_and_asked_for_once(run, monkeypatch):
    asked = []
    monkeypatch.setattr(tasks, "load", lambda spec, **rest: asked.append(spec) or _absent(spec))
    tasks._model.cache_clear()
    status = run(analyses=["token-similarity", "gram-spectrum"])
    assert (status.done, status.failed) == (0, 6)
    assert set(status.failures.values()) == {f"{MODEL} is not cached"}
    assert len(asked) == 1


def _absent(spec):
    raise MissingResource(f"{spec} is not cached")


def test_a_full_disk_ends_the_sweep_clearly_and_it_resumes(run, monkeypatch):
    whole, written = tasks.SweepFolder.write_part, []

    def write(folder, plan, task, part):
        if len(written) == 1:
            raise MissingResource("cannot write part: No space left on device")
        written.append(task)
        return whole(folder, plan, task, part)

    monkeypatch.setattr(tasks.SweepFolder, "write_part", write)
    with pytest.raises(MissingResource, match=r"No space left on device; .* make room, then run it again"):
        run()
    monkeypatch.undo()
    status = run()
    assert status.done == 3
    same_numbers(read(status), read(run("whole", shards=1)))


def test_where_memory_is_short_the_micro_batch_halves_and_the_numbers_stay(run, monkeypatch):
    whole, sizes = tasks.accumulate, []

    def accumulate(analysis, options, source, settings, **rest):
        sizes.append(settings.batch_size)
        if settings.batch_size > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(analysis, options, source, settings, **rest)

    monkeypatch.setattr(tasks, "accumulate", accumulate)
    status = run(shards=1)
    assert sizes == [4, 2, 1]
    held = json.loads((status.folder / "manifest.json").read_text())
    assert [part["batch"] for part in held["parts"].values()] == [1]
    monkeypatch.undo()
    # a float32 forward of one input rounds otherwise than that of four, by how much the processor decides
    same_numbers(read(status), read(run("whole", shards=1)), rtol=1e-6)


def test_texts_in_pieces_of_a_micro_batch_keep_its_padding(run, monkeypatch):
    text = {
        "models": "bundled:prose-softmax",
        "inputs": "bundled:prose",
        "n": 4,
        "shards": 1,
        "dtype": "float64",
    }
    frames, whole = [], tasks.analysis_source
    for size in (4, 1):
        monkeypatch.setattr(tasks, "analysis_source", partial(in_pieces, whole, size))
        status = run(f"{size}", **text)
        frames.append(read(status))
    same_numbers(*frames)


def in_pieces(whole, size, analysis, options, settings):
    return whole(analysis, options, replace(settings, batch_size=size))


def test_a_model_that_does_not_fit_with_one_input_is_a_clear_failure(run, monkeypatch):
    def accumulate(*arguments, **rest):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte")

    monkeypatch.setattr(tasks, "accumulate", accumulate)
    status = run()
    assert status.failed == 3
    assert all(
        "does not fit into memory with one input at a time" in error for error in status.failures.values()
    )


def test_time_that_is_up_leaves_what_is_finished_and_tells_the_rest(run, monkeypatch):
    now, whole = [0.0], tasks._measure

    def measure(*arguments):
        part = whole(*arguments)
        now[0] += 60  # a minute for each shard
        return part

    for module in (tasks, running):
        monkeypatch.setattr(module.time, "time", lambda: now[0])
    monkeypatch.setattr(tasks, "_measure", measure)
    status = run(max_time=90)
    assert (status.done, status.failed, status.left) == (2, 0, 1)
    monkeypatch.undo()
    assert run().left == 0


def test_a_time_is_a_number_with_a_unit():
    assert [parse_duration(text) for text in ("90", "90s", "30m", "1.5h", "2 d")] == [
        90,
        90,
        1800,
        5400,
        172800,
    ]
    for text in ("soon", "0", "-3s", "5 weeks"):
        with pytest.raises(InputError, match="30m or 8h"):
            parse_duration(text)


STALLED = """
import sys, time
from workbench.apps import cli
from workbench.runs.sweep import tasks

measured, whole = [], tasks._measure

def measure(*arguments):
    if len(measured) == 2:
        time.sleep(3600)  # however slow the one is who interrupts it, the sweep is at its third shard
    measured.append(whole(*arguments))
    return measured[-1]

tasks._measure = measure
cli.main(sys.argv[1:])
"""


def wait_for(folder, count, process, seconds=600):
    """Wait until so many parts are there, while the process lives."""
    end = time.monotonic() + seconds
    while len([*folder.rglob("shard-*.parquet")]) < count:
        assert process.poll() is None, "the sweep ended early"
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_killed_or_interrupted_goes_on_where_it_was(run, tmp_path, how):
    out = tmp_path / "sweep"
    words = f"sweep run -m {MODEL} -i bundled:digits -a token-similarity"
    numbers = "-n 24 --shards 6 --batch-size 4"
    command = [sys.executable, "-c", STALLED, *words.split(), *numbers.split(), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for(out, 2, process)
    with pytest.raises(InputError, match="another sweep is writing"):
        run(n=24, shards=6)
    process.send_signal(how)
    printed = process.communicate(timeout=120)[1].decode()
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "finished work is kept" in printed
    parts = {part: part.stat().st_mtime_ns for part in out.rglob("shard-*.parquet")}
    assert len(parts) == 2
    status = run(n=24, shards=6)  # the lock of the dead process is no obstacle
    assert status.done == 6
    kept = [part for part, when in parts.items() if part.stat().st_mtime_ns == when]
    assert len(kept) == len(parts)
    same_numbers(read(status), read(run("whole", n=24, shards=1)))
    shutil.rmtree(out)


class Losing(workers.Pool):
    """A pool that loses a worker whenever it is at a certain shard."""

    def __init__(self, shard, times):
        super().__init__("loky", 1)
        self.shard, self.times = shard, times

    def run(self, function, arguments):
        for each in arguments:
            folder, _, task, _ = each
            if task.shard == self.shard and self.times:
                self.times -= 1
                mark = (
                    running.SweepFolder(folder).path
                    / ".running"
                    / f"{task.model}-{task.analysis}-{task.shard}"
                )
                mark.parent.mkdir(exist_ok=True)
                mark.touch()
                raise ConnectionResetError("worker lost")
            yield function(*each)


@pytest.mark.parametrize(("times", "failed"), [(1, 0), (3, 0), (9, 1)])
def test_the_shard_whose_worker_is_lost_runs_alone_and_is_given_up_in_the_end(
    run, monkeypatch, times, failed
):
    from contextlib import nullcontext

    monkeypatch.setattr(running, "open_pool", lambda *rest: nullcontext(Losing(1, times)))
    status = run()
    assert (status.done, status.failed) == (3 - failed, failed)
    assert all("its worker ended before it was done" in error for error in status.failures.values())


def test_workers_that_end_before_they_begin_anything_are_no_endless_loop(run, monkeypatch):
    def run_nothing(pool, function, arguments):
        raise ConnectionResetError("no worker comes up")
        yield

    monkeypatch.setattr(workers.Pool, "run", run_nothing)
    with pytest.raises(WorkbenchError, match=r"ended 6 times before they began anything .no worker comes up"):
        run()
