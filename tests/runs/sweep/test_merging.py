"""Parts are merged once and kept, and what is read is always what the parts say now."""

import pandas as pd
import pytest

from tests.runs.sweep.conftest import partly, read, same_numbers
from workbench.core.errors import MissingResource
from workbench.runs import cache
from workbench.runs.sweep.plan import Task
from workbench.runs.sweep.sweep_folder import SweepFolder

ANALYSES = [("gram-spectrum", {"null_samples": 0, "max_rank": 3}), ("value-similarity", {"null_samples": 2})]


def parts_of(status):
    return sorted(status.folder.glob("parts/*/*/*.parquet"))


@pytest.fixture
def reads(monkeypatch):
    """Every part that is read from here on."""
    whole, seen = SweepFolder.read_part, []

    def read_part(folder, plan, task):
        seen.append(task.shard)
        return whole(folder, plan, task)

    monkeypatch.setattr(SweepFolder, "read_part", read_part)
    return seen


@pytest.mark.parametrize(("name", "options"), ANALYSES)
def test_what_is_kept_is_bit_for_bit_what_was_merged(run, reads, name, options):
    status = run(analyses=[(name, options)], n=9)
    reads.clear()
    first, again = read(status, name), read(status, name)
    assert reads == [0, 1, 2]
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    assert first.attrs == again.attrs


def test_a_sweep_that_went_on_is_read_as_it_is_now(run):
    whole = read(run("whole"))
    status = run()
    last = parts_of(status)[2]
    last.unlink()  # as if it had been stopped
    assert any("16 of 21 inputs" in note for note in partly(status).attrs["notes"])
    run()
    frame = read(status)
    same_numbers(frame, whole)
    assert frame.attrs["provenance"]["inputs"]["n"] == 21
    last.unlink()
    assert any("16 of 21 inputs" in note for note in partly(status).attrs["notes"])


def test_a_part_that_was_changed_or_damaged_is_never_read_as_it_was(run):
    status, other = run(n=21), run("other", n=21, seed=1)
    parts = parts_of(status)
    before, held = read(status), parts[1].read_bytes()
    content = bytearray(held)
    content[60] ^= 255
    parts[1].write_bytes(content)  # as long as it was
    assert any("1 of 3 shards are missing" in note for note in partly(status).attrs["notes"])
    parts[1].write_bytes(parts_of(other)[1].read_bytes())  # of another plan
    assert any("1 of 3 shards are missing" in note for note in partly(status).attrs["notes"])
    parts[1].write_bytes(held)
    pd.testing.assert_frame_equal(read(status), before, check_exact=True)


def test_a_part_that_comes_while_others_are_read_is_not_taken_for_an_older_state(run, monkeypatch):
    status = run()
    last, whole = parts_of(status)[2], SweepFolder.read_part
    content = last.read_bytes()
    last.unlink()

    def read_part(folder, plan, task):
        last.write_bytes(content)
        return whole(folder, plan, task)

    monkeypatch.setattr(SweepFolder, "read_part", read_part)
    assert len(read(status).attrs["notes"]) == 0
    monkeypatch.undo()
    last.unlink()
    assert any("16 of 21 inputs" in note for note in partly(status).attrs["notes"])


def test_a_damaged_file_of_what_was_merged_is_written_anew(run, reads):
    status = run()
    before = read(status)
    (kept,) = status.folder.glob("merged/*/*.parquet")
    kept.write_bytes(kept.read_bytes()[:-100])
    reads.clear()
    pd.testing.assert_frame_equal(read(status), before, check_exact=True)
    pd.testing.assert_frame_equal(read(status), before, check_exact=True)
    assert reads == [0, 1, 2]


def test_a_folder_that_cannot_be_written_is_read_all_the_same(run, monkeypatch):
    status = run()

    def refuse(*arguments):
        raise MissingResource("cannot write: read-only file system")

    monkeypatch.setattr(cache, "write_frame", refuse)
    before = read(status)
    monkeypatch.undo()
    assert not (status.folder / "merged").exists()
    pd.testing.assert_frame_equal(read(status), before, check_exact=True)


def test_rows_of_single_inputs_are_not_stored_twice(run):
    status = run(per_input=True, n=9)
    read(status)
    assert not (status.folder / "merged").exists()


def test_a_task_is_marked_from_its_begin_to_its_end_and_stays_marked_where_its_worker_is_killed(tmp_path):
    folder, task, other = SweepFolder(tmp_path), Task(0, 2, 1), Task(1, 0, 0)
    marks = [folder.begun(one) for one in (task, other)]
    assert folder.take_marks([task, other]) == set()
    for mark in marks:
        mark.__enter__()
    assert folder.take_marks([task]) == {task}
    assert folder.take_marks([task, other]) == {other}
    with folder.begun(task):
        pass
    assert folder.take_marks([task]) == set()
