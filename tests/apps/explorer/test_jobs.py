"""The worker: what is cancelled stops and leaves no trace, and only the last job is heard."""

import asyncio
import threading

import pytest
import torch
from torch import nn

from workbench.apps.explorer.jobs import Cancelled, Report, Worker, stoppable


def silent(text, share):
    pass


def test_without_an_event_loop_a_job_runs_in_place():
    heard = []
    Worker().start(lambda report: 3, heard.append, heard.append, silent)
    assert heard == [3]


def test_an_error_is_handed_over_as_it_is():
    heard = []
    error = ValueError("no")

    def work(report):
        raise error

    worker = Worker()
    worker.start(work, pytest.fail, heard.append, silent)
    assert heard == [error]
    assert not worker.busy


def test_a_job_tells_what_it_does_and_how_far_it_is():
    reported = []

    def work(report):
        report("loading", None)
        report.progress(0.25)

    Worker().start(work, silent_one, pytest.fail, lambda text, share: reported.append((text, share)))
    assert reported == [("loading", None), ("loading", 0.25)]


def silent_one(value):
    pass


async def over():
    """Wait until the threads of all jobs have ended, and what they said last has been heard."""
    for thread in threading.enumerate():
        if thread.name == "workbench-explorer":
            await asyncio.to_thread(thread.join, 120)
    await asyncio.sleep(0)


def test_a_cancelled_job_ends_at_its_next_word_and_is_not_heard():
    ended = threading.Event()
    go_on = threading.Event()

    async def scene():
        heard = []
        worker = Worker()

        def work(report):
            try:
                go_on.wait(120)
                report("still there?")
            except Cancelled:
                ended.set()
                raise
            return "too late"

        worker.start(work, heard.append, heard.append, silent)
        assert worker.busy
        assert worker.cancel()
        assert not worker.busy
        go_on.set()
        await over()
        return heard

    assert asyncio.run(scene()) == []
    assert ended.is_set()


def test_a_newer_job_takes_the_place_of_the_one_before():
    async def scene():
        heard = asyncio.Queue()
        worker = Worker()
        first = threading.Event()

        def slow(report):
            first.wait(120)
            return "old"

        worker.start(slow, heard.put_nowait, pytest.fail, silent)
        worker.start(lambda report: "new", heard.put_nowait, pytest.fail, silent)
        first.set()
        found = [await asyncio.wait_for(heard.get(), 120)]
        await over()
        return found, heard.qsize()

    assert asyncio.run(scene()) == (["new"], 0)


def test_a_forward_pass_stops_between_two_modules():
    report = Report()
    seen = []

    class Stopping(nn.Module):
        def forward(self, x):
            seen.append("ran")
            report.stop()
            return x

    model = nn.Sequential(nn.Linear(3, 3), Stopping(), nn.Linear(3, 2))
    with pytest.raises(Cancelled), stoppable(report):
        model(torch.zeros(1, 3))
    assert seen == ["ran"]
    assert model[0](torch.zeros(1, 3)).shape == (1, 3)  # nothing stays hooked


def test_another_thread_may_go_on_running_models():
    report = Report()
    report.stop()
    shapes = []
    with stoppable(report):
        other = threading.Thread(target=lambda: shapes.append(nn.Linear(3, 2)(torch.zeros(1, 3)).shape))
        other.start()
        other.join()
    assert shapes == [(1, 2)]
