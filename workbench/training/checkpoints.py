"""The checkpoint functions under their trainer's name; they live in `workbench.checkpoints`."""

from workbench.checkpoints import (
    METADATA_KEY,
    file_sha256,
    load_weights,
    read_checkpoint,
    read_torch_file,
    restore,
    write_checkpoint,
)

__all__ = [
    "METADATA_KEY",
    "file_sha256",
    "load_weights",
    "read_checkpoint",
    "read_torch_file",
    "restore",
    "write_checkpoint",
]
