"""Texts as characters: the tokenizer of the small language models trained here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from workbench.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PADDING, UNKNOWN = "[PAD]", "[UNK]"
SPECIAL = (PADDING, UNKNOWN)
"""The first tokens, before the characters."""


def characters_of(texts: Iterable[str]) -> str:
    """Every character of the texts once, in the order of their code points."""
    return "".join(sorted(set().union(*texts)))


def character_tokenizer(characters: str, max_length: int | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per character: ``SPECIAL``, then `characters` in their order.

    Any other character is unknown. It adds no token of its own to a text. `max_length` is the longest text of
    its model, in tokens. Raises InputError for no characters, or one given twice.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if not characters or len(set(characters)) < len(characters):
        raise InputError(f"a character vocabulary names each character once, got {characters!r}")
    known = {token: number for number, token in enumerate([*SPECIAL, *characters])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    limit = {} if max_length is None else {"model_max_length": max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        padding_side="right",
        truncation_side="right",
        split_special_tokens=True,  # "[PAD]" in a text is five characters
        **limit,
    )
