import pytest

from workbench.core.errors import InputError
from workbench.models.tokenizer import (
    SPECIAL,
    byte_tokenizer,
    character_tokenizer,
    characters_of,
    word_tokenizer,
)


def test_every_character_is_a_token_in_its_order():
    tokenizer = character_tokenizer("cab ")
    assert tokenizer.convert_ids_to_tokens(range(6)) == [*SPECIAL, "c", "a", "b", " "]
    assert len(tokenizer) == 6
    assert tokenizer("abc  a")["input_ids"] == [3, 4, 2, 5, 5, 3]


@pytest.mark.parametrize("text", ["a  b\n c\t", "it 's here . isn't it ?", "[PAD] and [UNK]", " é—ß "])
def test_texts_come_back_as_they_were(text):
    tokenizer = character_tokenizer(characters_of([text]))
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert 0 not in ids


def test_other_characters_are_unknown_and_short_texts_padded_on_the_right():
    tokenizer = character_tokenizer("ab", max_length=4)
    batch = tokenizer(["axb", "abbbbb"], padding=True, truncation=True)
    assert batch["input_ids"] == [[2, 1, 3, 0], [2, 3, 3, 3]]
    assert batch["attention_mask"] == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert tokenizer.model_max_length == 4
    assert tokenizer.num_special_tokens_to_add() == 0


def test_characters_of_texts():
    assert characters_of(["banana", "bad ", ""]) == " abdn"


@pytest.mark.parametrize("characters", ["", "abca"])
def test_vocabularies_that_cannot_be(characters):
    with pytest.raises(InputError, match="names each character once"):
        character_tokenizer(characters)


@pytest.mark.parametrize("text", ["a harbour", "é—ß 水\n\t[PAD]", ""])
def test_a_byte_is_a_token(text):
    tokenizer = byte_tokenizer(max_length=30)
    ids = tokenizer(text)["input_ids"]
    assert ids == [len(SPECIAL) + byte for byte in text.encode()]
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == len(SPECIAL) + 256


def test_words_lie_between_blanks_and_what_is_dropped():
    tokenizer = word_tokenizer(["[MAX", "3", "]"], dropped="()")
    assert tokenizer("( ( [MAX 3 ) 7 )]")["input_ids"] == [2, 3, 1, 4]
    assert word_tokenizer(["(a)"])("(a) a")["input_ids"] == [2, 1]
    with pytest.raises(InputError, match=r"names each word once, got \['a', 'a'\]"):
        word_tokenizer(["a", "a"])
