"""Files that are there whole or not at all, their hashes, and JSON."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from workbench.core.errors import InputError, MissingResource


def atomic_write(path: str | os.PathLike[str], write: bytes | Callable[[IO[bytes]], object]) -> Path:
    """Write a file in one atomic step, from bytes or by a function that writes into a handle.

    Makes its folder. Raises `MissingResource` naming the file where its folder is read-only, or the disk full.
    """
    path = Path(path).expanduser()
    put = (lambda handle: handle.write(write)) if isinstance(write, bytes) else write
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False)  # noqa: SIM115 - closed below, before the rename
        try:
            with handle:
                put(handle)
            os.chmod(handle.name, 0o666 & ~_umask())
            os.replace(handle.name, path)
        except BaseException:
            Path(handle.name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise MissingResource(
            f"cannot write {path}: {error.strerror or error}; give another path, or free some space there"
        ) from error
    return path


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise `MissingResource` where a file cannot be written, before long work begins.

    Creates nothing. A folder that does not exist yet is judged by its nearest existing parent.
    """
    path = Path(path).expanduser()
    folder = next(parent for parent in (path.absolute().parent, *path.absolute().parents) if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        reason = "may not be written to" if folder.is_dir() else "is no folder"
        raise MissingResource(f"cannot write {path}: {folder} {reason}; give another path")


def sha256_bytes(content: bytes) -> str:
    """Return the hexadecimal SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the hexadecimal SHA-256 of a file's content."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def check_format(path: str | os.PathLike[str], name: str, version: Any, current: int) -> None:
    """Raise `InputError` for a file whose format is not the current one; ``name`` is the format's name in the error."""
    if version == current:
        return
    newer = isinstance(version, int) and version > current
    advice = "update the workbench" if newer else "write the file again"
    raise InputError(f"{path} has {name} {version!r:.40}; this workbench reads {name} {current}: {advice}")


def jsonable(value: Any) -> Any:
    """Convert tuples, numpy scalars, arrays and paths in a value to JSON types."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [jsonable(item) for item in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def write_json(path: str | os.PathLike[str], value: Any) -> Path:
    """Write a value as indented JSON in one atomic step; raises the errors of `atomic_write`."""
    return atomic_write(path, (json.dumps(jsonable(value), indent=1, ensure_ascii=False) + "\n").encode())
