"""Location and size of a model's weights, before any of them is read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from workbench.core.errors import MissingResource, WorkbenchError
from workbench.frames.results import is_random
from workbench.models import catalog, hub
from workbench.models.loading import architecture_of, bundled_checkpoint, resolve, split_spec

_HUB_FILES = ("model.safetensors", "pytorch_model.bin")
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
_BYTES = 4
"""Of a weight, as the papers' models are published."""


class Weights(NamedTuple):
    """``where`` is bundled, installed package, here (a file, a folder, the cache), random, hub, or missing.

    ``why`` says where they lie, or why they are missing and what helps; ``bytes`` is what is, or will be, on the disk.
    """

    spec: str
    where: str
    bytes: int | None
    why: str


def find_weights(spec: str) -> Weights:
    """Locate the weights of a model; on the hub only if it answers. Reads none of them.

    Raises `InputError` or `UnknownName` for a spec or a file that is wrong on every machine.
    """
    plain, _, checkpoint = split_spec(spec)
    scheme, name = resolve(plain)
    if scheme == "py":
        return Weights(spec, "here", None, "your own module")
    if is_random(checkpoint):
        return Weights(spec, "random", None, "random weights were asked for")
    own_file = scheme == "hf" and Path(str(checkpoint)).suffix in _SUFFIXES
    if checkpoint is not None and (scheme in ("timm", "tost", "crate") or own_file):
        return _in_files(spec, [Path(checkpoint).expanduser()])
    if scheme == "bundled":
        try:
            return _in_files(spec, [bundled_checkpoint(name, checkpoint)], "bundled")
        except MissingResource as reason:
            return Weights(spec, "missing", None, str(reason))
    if scheme in ("tost", "crate"):
        return Weights(
            spec, "random", None, "random weights: none are published; give its authors' file as checkpoint"
        )
    if scheme == "file":
        return _in_files(spec, [Path(name).expanduser()])
    entry = catalog.find(plain)
    installed = catalog.installed_folder(entry) if entry else None
    folder = installed or Path(name.removeprefix("local-dir:")).expanduser()
    if folder.is_dir():
        inside = [path for path in folder.iterdir() if path.suffix in _SUFFIXES]
        return _in_files(spec, inside, "installed package" if installed else "here", str(folder))
    repositories, file = _repositories(scheme, name, entry)
    for repository in repositories:
        if path := hub.cached_file(repository, [file] if file else _HUB_FILES, revision=checkpoint):
            return _in_files(spec, [Path(path)], why="cached")
    count = weight_count(spec)
    expected = None if count is None else _BYTES * count
    if hub.obstacle() is None:
        return Weights(spec, "hub", expected, f"{repositories[0]}, to be fetched")
    return Weights(spec, "missing", expected, f"{repositories[0]} is not cached, and the hub does not answer")


def _in_files(spec: str, files: Iterable[Path], where: str = "here", why: str = "") -> Weights:
    files = [*files]
    absent = [path for path in files if not path.is_file()]
    if absent or not files:
        what = f"no file at {absent[0]}" if absent else f"no weights in {why}"
        return Weights(spec, "missing", None, f"{what}; give the path of a file of its weights")
    return Weights(spec, where, sum(path.stat().st_size for path in files), why or str(files[0].parent))


def _repositories(scheme: str, name: str, entry: catalog.Entry | None) -> tuple[list[str], str | None]:
    """Return the possible names of a model in the hub's cache, and the file if the spec names one."""
    if scheme != "timm":
        return [name, *([entry.alias] if entry else [])], None
    from workbench.core.light_timm import timm

    if name.startswith(("hf-hub:", "hf_hub:")):
        return [name.partition(":")[2]], None
    config = timm.models.get_pretrained_cfg(name, allow_unregistered=False)
    return [getattr(config, "hf_hub_id", None) or name], getattr(config, "hf_hub_filename", None)


@cache
def weight_count(spec: str) -> int | None:
    """Return the number of weights of a model, by its architecture; None where that is unknown here.

    Raises what `resolve` raises for a name that there is not.
    """
    plain = split_spec(spec)[0]
    entry = catalog.find(plain)
    if entry is not None and entry.weights is not None:
        return entry.weights
    resolve(plain)
    try:
        return sum(value.numel() for value in architecture_of(spec).parameters())
    except WorkbenchError:
        return None
