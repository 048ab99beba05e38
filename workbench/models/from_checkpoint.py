"""Models from checkpoints that ``workbench study train`` wrote, the bundled ones among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import InputError
from workbench.frames.results import RANDOM_WEIGHTS
from workbench.models.checkpoints import read_checkpoint, restore
from workbench.models.source import ImageFormat, Source, seeded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load(path: Path, checkpoint: str | None, pretrained: bool) -> Source:
    """A model from a file that ``workbench study train`` wrote; `checkpoint` is the name it goes by."""
    from workbench.attention.bilateral import precompute_positions
    from workbench.models.architectures import build

    if pretrained:
        module, meta = restore(path)
        precompute_positions(module)
    else:
        meta = read_checkpoint(path)[1]
        with seeded():
            module = build(meta["architecture"])
        checkpoint = RANDOM_WEIGHTS
    about = meta["preprocessing"]
    architecture = meta["architecture"]
    if "characters" in about:
        return _character_model(path, module, checkpoint, meta)
    if architecture["name"] == "sequence":
        return _sequence_model(module, checkpoint, about)
    mean, std = tuple(about["mean"]), tuple(about["std"])
    side = int(about["resize"])
    image = ImageFormat((side, side), len(mean), mean, std, recorded=True)
    return Source(module, architecture["name"], "image", checkpoint, image, meta=meta)


def _character_model(path: Path, module: Any, checkpoint: str | None, meta: dict[str, Any]) -> Source:
    from workbench.models.tokenizer import SPECIAL, character_tokenizer

    characters, limit = meta["preprocessing"]["characters"], module.max_length
    has, needs = module.get_input_embeddings().num_embeddings, len(characters) + len(SPECIAL)
    if has != needs:
        raise InputError(
            f"{path} names {len(characters)} characters, which with {' and '.join(SPECIAL)} make {needs} tokens, but "
            f"its model knows {has}"
        )
    name = meta["architecture"]["name"]
    return Source(
        module,
        name,
        "text",
        checkpoint,
        max_length=limit,
        load_tokenizer=lambda: character_tokenizer(characters, limit),
        meta=meta,
    )


def _sequence_model(module: Any, checkpoint: str | None, about: dict[str, Any]) -> Source:
    """A classifier of sequences: texts are fed to one of bytes or words, tensors of one's own to the others."""
    from workbench.models.tokenizer import byte_tokenizer, word_tokenizer

    limit = module.max_length
    tokenizers: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
        "bytes": lambda: byte_tokenizer(limit),
        "words": lambda: word_tokenizer(about["words"], about["dropped"], limit),
    }
    load = tokenizers.get(about.get("tokens", ""))
    if load is None:
        return Source(module, "sequence", "other", checkpoint)
    return Source(module, "sequence", "text", checkpoint, max_length=limit, load_tokenizer=load)
