import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from workbench.core.complete_module import complete_module

# As transformers does it: the names are in another module, which takes the place of this one at the end.
REPLACES_ITSELF = """
import builtins, sys, types
started, go_on = builtins.events_of_replaced
started.set()
go_on.wait(30)
whole = types.ModuleType(__name__)
whole.__spec__ = __spec__
whole.answer = 42
sys.modules[__name__] = whole
"""


@pytest.fixture
def half_imported(tmp_path, monkeypatch):
    """A module that another thread has begun to import, and what lets that thread end."""
    (tmp_path / "replaced.py").write_text(REPLACES_ITSELF)
    monkeypatch.syspath_prepend(tmp_path)
    started, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr("builtins.events_of_replaced", (started, go_on), raising=False)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(__import__, "replaced")
        assert started.wait(30)
        yield threads, go_on
        go_on.set()
        first.result()
    sys.modules.pop("replaced", None)


def test_a_module_that_another_thread_is_importing_comes_whole(half_imported):
    threads, go_on = half_imported
    second = threads.submit(lambda: complete_module("replaced").answer)
    time.sleep(0.1)  # it waits by then
    assert not second.done()
    go_on.set()
    assert second.result() == 42
