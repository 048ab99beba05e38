"""An image or text that a person hands to the explorer, kept as a file so that an address can name it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import quote_plus

from workbench.core import paths
from workbench.core.errors import InputError, MissingResource
from workbench.core.files import atomic_write
from workbench.data.pools import IMAGE_SUFFIXES, listed_inputs, open_pool, uploads_folder

LONGEST = 32_000  # characters of inputs in a link or a command


def keep_image(name: str, content: bytes) -> str:
    """Keep an uploaded image and return the inputs spec that reads it.

    The file is stored in the workbench's own cache, in a folder named by its content, whatever its path was. The
    spec names it by content too, and holds no path of this machine. An image whose content is there already keeps the
    name that it came with first.

    Raises:
        InputError: an empty file, or a suffix of no kind of image.
        MissingResource: the cache cannot be written.
    """
    plain = Path(name.replace("\\", "/")).name
    suffix = Path(plain).suffix.lower()
    if suffix not in IMAGE_SUFFIXES:
        raise InputError(
            f"{plain!r} is not an image this reads; give a file that ends in {', '.join(IMAGE_SUFFIXES)}"
        )
    if not content:
        raise InputError(f"{plain!r} is empty; upload the image again")
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(plain).stem).strip("-")[:60] or "image"
    return _keep(stem + suffix, content)


def keep_text(text: str) -> str:
    """Keep a typed text and return the inputs spec that reads it; every line is one text.

    Raises InputError where every line is blank, MissingResource where the cache cannot be written.
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if not lines:
        raise InputError("there is no text; type or paste at least a word")
    content = "".join(line + "\n" for line in lines).encode()
    return _keep("text.txt", content)


def portable_inputs(spec: str) -> str:
    """Return a spec with the lines of a typed text, for other machines; unchanged for others and above `LONGEST`."""
    if not spec.startswith("upload:"):
        return spec
    pool = open_pool(spec)
    if pool.modality != "text":
        return spec
    listed, _ = listed_inputs([str(pool.read(line).content) for line in range(len(pool))], "text")
    return listed if len(quote_plus(listed)) <= LONGEST else spec


def _keep(name: str, content: bytes) -> str:
    key = hashlib.sha256(content).hexdigest()[:16]
    path = uploads_folder() / key / name
    if not any(path.parent.glob("[!.]*")):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MissingResource(
                f"cannot write to the cache {paths.cache_dir()}: {error.strerror}; WORKBENCH_CACHE moves it"
            ) from error
        atomic_write(path, content)
    return f"upload:{key}"
