"""Tensors with a note in JSON as one file, ``.safetensors`` or ``.npz``: written whole, never unpickled."""

from __future__ import annotations

import errno
import json
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import InputError
from workbench.core.files import atomic_write

_KEY = "workbench"


def write_tensors(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> Path:
    """Write tensors of the CPU that share no memory; the file appears whole or not at all.

    Raises MissingResource naming the path where the folder cannot be written or is full, InputError for an
    ending other than .safetensors and .npz, and for bfloat16 in ``.npz``, which has no such type.
    """
    target = Path(path)
    suffix = _suffix(target)
    text = json.dumps(metadata, ensure_ascii=False)
    if suffix == ".npz":
        half = next((name for name, value in tensors.items() if value.dtype == torch.bfloat16), None)
        if half:
            raise InputError(
                f"{target}: {half} is bfloat16, which .npz cannot hold; write a .safetensors file"
            )

    def put(handle: IO[bytes]) -> None:
        if suffix == ".npz":
            arrays: dict[str, Any] = {name: value.numpy() for name, value in tensors.items()}
            np.savez(handle, **arrays, **{_KEY: np.array(text)})
            return
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            save_file(tensors, handle.name, metadata={_KEY: text})
        except SafetensorError as error:  # its writer reports a full disk in its own words
            full = "space" in str(error).lower()
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error

    return atomic_write(target, put)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """The tensors of a file, and the note that `write_tensors` left in it; None in anyone else's file."""
    suffix = _suffix(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        if suffix == ".npz":
            if not zipfile.is_zipfile(path):  # numpy would take it for a pickle, and advise to load that
                raise InputError(f"{path}: not a readable .npz file; write it with numpy.savez")
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            text = str(arrays.pop(_KEY)) if _KEY in arrays else None
            tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}
        else:
            from safetensors import SafetensorError, safe_open

            try:
                with safe_open(path, framework="pt") as file:
                    text = (file.metadata() or {}).get(_KEY)
                    names = list(file.keys())
                    tensors = {name: file.get_tensor(name) for name in names}
            except SafetensorError as error:
                raise InputError(f"{path}: not a readable safetensors file ({error})") from error
        metadata = json.loads(text) if text else None
    except (OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read as {suffix} ({error})") from error
    return tensors, metadata if isinstance(metadata, dict) else None


def _suffix(path: Path) -> str:
    if path.suffix not in (".safetensors", ".npz"):
        raise InputError(
            f"{path}: a file of q, k, v ends in .safetensors or .npz, not {path.suffix or 'nothing'!r}"
        )
    return path.suffix
