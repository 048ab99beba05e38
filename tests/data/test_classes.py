"""Which outputs of a model the classes of a folder are: by number, or by name."""

from typing import ClassVar

import pytest
from timm.data import ImageNetInfo

from workbench.core.errors import InputError, UnknownName
from workbench.data.classes import class_indices, outcome_index

KNOWN = ["ant", "bee", "cat", "dog", "elk"]


def test_as_many_folders_as_outputs_are_these_whatever_their_names():
    assert class_indices(["x", "y", "z"], 3) == [0, 1, 2]
    assert class_indices(["a", "b", "c", "d", "e"], 5, KNOWN) == [0, 1, 2, 3, 4]
    names = [f"class {number}" for number in range(1000)]
    assert class_indices(names, 1000) == list(range(1000))


def test_fewer_wordnet_ids_are_found_among_the_thousand_of_imagenet():
    # timm's list of the classes of ImageNet-A has their numbers beside their names.
    import importlib.resources

    info = importlib.resources.files("timm.data") / "_info"
    names = (info / "imagenet_a_synsets.txt").read_text().split()
    numbers = [int(number) for number in (info / "imagenet_a_indices.txt").read_text().split()]
    assert len(names) == 200
    assert class_indices(names, 1000) == numbers
    assert class_indices(["n01440764", "n15075141"], 1000) == [0, 999]
    assert ImageNetInfo().index_to_label_name(numbers[7]) == names[7]


def test_fewer_folders_are_found_among_the_names_that_a_model_was_trained_on():
    assert class_indices(["bee", "elk"], 5, KNOWN) == [1, 4]


@pytest.mark.parametrize(
    ("folders", "outputs", "known", "said"),
    [
        (["n01440764", "n99999999"], 1000, (), r"n99999999 is none of the 1000 classes .* WordNet ids"),
        (["cat", "dog"], 1000, (), r"2 class folders \(cat, dog\), and cat, dog are none of the 1000"),
        (["ant", "cow", "yak"], 5, KNOWN, r"cow, yak are none of the 5 .* named as they are \(ant, bee, cat, …\)"),
        (["n01440764", "n01443537"], 7, (), r"7 outputs, whose names are not known; give a folder for each of its 7"),
        (["a", "b", "c", "d"], 3, (), r"4 class folders \(a, b, c, …\), and the model has 3 outputs"),
        (list("abcdef"), 5, KNOWN, r"a, b, c and 3 more are none of the 5"),
    ],
)  # fmt: skip
def test_class_lists_that_do_not_match_are_refused(folders, outputs, known, said):
    with pytest.raises(InputError, match=said):
        class_indices(folders, outputs, known)


class Tokenizer:
    """One token for " Mary", "Mary" and "to", two for " to"."""

    unk_token_id = 9
    words: ClassVar = {" Mary": [1], "Mary": [2], " to": [3, 4], "to": [4], " x": [9], "x": [9]}

    def __call__(self, text, add_special_tokens):
        return {"input_ids": self.words[text]}

    def convert_ids_to_tokens(self, ids):
        return [f"<{number}>" for number in ids]


def test_an_outcome_is_a_token_that_continues_a_text_or_a_class():
    assert [outcome_index(name, tokenizer=Tokenizer()) for name in ("Mary", "to")] == [1, 4]
    with pytest.raises(InputError, match=r"'x' is not one token of the model \(<9>\)"):
        outcome_index("x", tokenizer=Tokenizer())
    assert outcome_index("7", ["3", "7"]) == 1
    assert outcome_index("7") == 7
    with pytest.raises(UnknownName, match=r"unknown class 'cat'.*give its number"):
        outcome_index("cat")
