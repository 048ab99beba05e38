"""Texts as characters, bytes or words: the tokenizers of the small models trained here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.core.complete_module import complete_module
from workbench.core.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_PADDING, UNKNOWN = "[PAD]", "[UNK]"
SPECIAL = (_PADDING, UNKNOWN)
"""The first tokens, before the characters, bytes or words."""
BYTES = 256


def characters_of(texts: Iterable[str]) -> str:
    """Every character of the texts once, in the order of their code points."""
    return "".join(sorted(set().union(*texts)))


def character_tokenizer(characters: str, max_length: int | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per character: ``SPECIAL``, then `characters` in their order.

    Any other character is unknown. It adds no special tokens to a text. `max_length` is the longest text of
    its model, in tokens. Raises InputError for no characters, or one given twice.
    """
    from tokenizers import decoders

    if not characters or len(set(characters)) < len(characters):
        raise InputError(f"a character vocabulary names each character once, got {characters!r}")
    return _tokenizer(list(characters), max_length, [_each_character()], decoders.Fuse())


def byte_tokenizer(max_length: int | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per byte of a text in UTF-8: ``SPECIAL``, then the bytes from 0 to 255.

    The names of the tokens are those of GPT-2's bytes ("Ġ" is a blank). It adds no special tokens.
    """
    from tokenizers import decoders, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    names = bytes_to_unicode()
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), _each_character()]
    return _tokenizer([names[byte] for byte in range(BYTES)], max_length, steps, decoders.ByteLevel())


def word_tokenizer(
    words: Sequence[str], dropped: str = "", max_length: int | None = None
) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per word between blanks: ``SPECIAL``, then `words` in their order.

    Characters in `dropped` count as blanks; any other word is unknown. It adds no special tokens. Raises
    InputError for no words, or one given twice.
    """
    from tokenizers import pre_tokenizers

    if not words or len(set(words)) < len(words):
        raise InputError(f"a vocabulary names each word once, got {list(words)!r}")
    cuts = [pre_tokenizers.Split(character, behavior="removed") for character in dropped]
    return _tokenizer(list(words), max_length, [*cuts, pre_tokenizers.WhitespaceSplit()], None)


def _each_character() -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")


def _tokenizer(
    tokens: Sequence[str], max_length: int | None, steps: Sequence[Any], decoder: Any
) -> PreTrainedTokenizerFast:
    """``SPECIAL``, then the tokens; ``steps`` cut a text into them, ``decoder`` puts them together."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    numbers = {token: number for number, token in enumerate([*SPECIAL, *tokens])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    if decoder is not None:
        tokenizer.decoder = decoder
    limit = {} if max_length is None else {"model_max_length": max_length}
    return complete_module("transformers").PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_PADDING,
        unk_token=UNKNOWN,
        padding_side="right",
        truncation_side="right",
        split_special_tokens=True,  # "[PAD]" in a text is five characters
        **limit,
    )
