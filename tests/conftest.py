"""What holds for every test: a clean environment, its tier, and what starts first."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from workbench.apps.rendering.run import NotebookProcesses

# A shell starts background jobs with this signal ignored, and children inherit that: a program that a test interrupts
# would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A theme, a folder of figures or a cache that the person has set for their own work is not what the tests are about.
for name in [name for name in os.environ if name.startswith("WORKBENCH_")]:
    del os.environ[name]

# Workers of pytest-xdist share the cores already. With several threads in each, a step of torch mostly waits for a
# thread that has no core: forty seconds for a training of one. What they start inherits this.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# timm as the library has it, before a test's own `import timm` brings torch's compiler
import workbench.core.light_timm  # noqa: E402, F401 (after the environment is clean; for what it does)

TESTS = Path(__file__).parent
TIERS = {
    "analyses": "",
    "apps": "e2e",
    "attention": "",
    "captures": "integration",
    "captures/test_families.py": "",
    "core": "",
    "core/test_children.py": "integration",
    "core/test_plugins.py": "integration",
    "core/test_notebook_html.py": "integration",
    "data": "integration",
    "figures": "",
    "figures/export": "e2e",
    "frames": "",
    "models": "integration",
    "numbers": "integration",
    "papers": "integration",
    "runs": "integration",
    "runs/sweep/test_notebooks.py": "e2e",
    "runs/sweep/test_pools.py": "e2e",
    "runs/watch/test_notebook.py": "e2e",
    "studies": "integration",
    "test_core_install.py": "e2e",
    "test_fuzz.py": "integration",
    "test_notebooks.py": "e2e",
    "test_pages.py": "e2e",
    "test_site.py": "e2e",
    "test_wheel.py": "e2e",
}
"""The tier of a folder's or a file's tests, the longest path first: "" is for those of `make check`, which run no model
but tiny ones and start no process; `integration` runs whole models, `e2e` processes, kernels, browsers and builds."""
FIRST = (
    "test_notebooks.py",
    "numbers",
    "apps/explorer/test_browser.py",
    "apps/explorer/test_launch.py",
    "core/test_children.py",
    "test_pages.py",
    "test_wheel.py",
    "runs/test_analyze.py",
    "apps",
    "test_site.py",
    "runs",
    "studies",
    "models",
)
"""What takes longest, and so starts first, or the other workers would wait for it in the end."""


def pytest_xdist_auto_num_workers() -> int:
    """One more than cores: a test that starts a process, a kernel or a browser mostly waits for it."""
    return (os.cpu_count() or 1) + 1


@cache
def _places(path: Path) -> tuple[str, ...]:
    """A file below `tests/`, and the folders around it, the file first."""
    own = path.relative_to(TESTS)
    return tuple(parent.as_posix() for parent in (own, *own.parents))


def _order(item: pytest.Item) -> int:
    places = _places(item.path)
    return next((rank for rank, start in enumerate(FIRST) if start in places), len(FIRST))


def _tier(path: Path) -> str:
    return next((TIERS[place] for place in _places(path) if place in TIERS), "")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files whose tests `make check` leaves out are not imported either, which would take as long as its tests."""
    fast = config.option.markexpr == "not integration and not e2e"
    return True if fast and collection_path.suffix == ".py" and _tier(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with its tier, and let what takes longest start first.

    Lab, Chromium and kernels are other people's programs, timed against each other on a busy machine: where one of
    their tests fails it is run once more, and the summary lists it under RERUN. No other test has a second try.
    """
    for item in items:
        if tier := _tier(item.path):
            item.add_marker(tier)
        if tier == "e2e":
            item.add_marker(pytest.mark.flaky(reruns=1))
    items.sort(key=_order)


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """Ctrl-C does after a test what it did before: dask-jobqueue, when imported, has it end the process silently."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def _notebook_processes() -> Iterator[NotebookProcesses]:
    """Processes that run notebooks, whose kernels are forked; they stay from one render to the next."""
    from workbench.apps.rendering.kernels import POSSIBLE
    from workbench.apps.rendering.run import NotebookProcesses

    processes = NotebookProcesses(forked=POSSIBLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "close", lambda: None)
        yield processes
    processes.close()


@pytest.fixture(scope="module")
def warm(_notebook_processes: NotebookProcesses) -> Iterator[None]:
    """Kernels start with everything imported, as in a render of several: in a second, not in ten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # the other cores have their own tests
        patch.setattr("workbench.apps.rendering.run.NotebookProcesses", lambda **given: _notebook_processes)
        yield


@pytest.fixture
def cold(_notebook_processes: NotebookProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one starts with its imports, as a single notebook does."""
    monkeypatch.setattr("workbench.apps.rendering.run.NotebookProcesses", type(_notebook_processes))


@pytest.fixture
def families() -> Iterator[None]:
    """The families are the same after the test as before."""
    from workbench.captures.family import FAMILIES, replace_families

    before = dict(FAMILIES)
    yield
    replace_families(before)
