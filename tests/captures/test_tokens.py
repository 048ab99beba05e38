"""Token labels, kinds, grid and mask without the help of inputs()."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.captures.families import FAMILIES
from workbench.captures import capture, fit_tokens, token_info
from workbench.captures.records import Call
from workbench.captures.tokens import source_of


def test_words_and_padding():
    tokens = token_info(
        nn.Identity(), {"input_ids": torch.tensor([[5, 6, 0]]), "attention_mask": torch.tensor([[1, 1, 0]])}
    )
    assert tokens.labels == [["5", "6", "0"]]
    assert tokens.kinds == [["word", "word", "padding"]]
    assert tokens.mask.tolist() == [[True, True, False]]


def test_plain_tokens_are_numbered():
    tokens = token_info(nn.Identity(), torch.randn(2, 5, 3), token_count=5)
    assert tokens.labels[1] == ["0", "1", "2", "3", "4"]
    assert tokens.mask.shape == (2, 5)


def test_patches_are_labelled_by_row_and_column():
    family = FAMILIES["deit-distilled"]
    tokens = token_info(family.build(), torch.randn(3, 3, 32, 32))
    assert tokens.labels[2][:4] == ["[CLS]", "[DIST]", "0,0", "0,1"]
    assert tokens.labels[2][-1] == "3,3"
    assert tokens.grid == (4, 4)


def test_registers_come_after_the_class_token():
    import timm

    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, reg_tokens=4)
    kinds = token_info(model, torch.randn(1, 3, 32, 32)).kinds[0]
    assert kinds == ["class", *["register"] * 4, *["patch"] * 4]


def test_text_is_lengthened_to_what_a_windowed_model_sees():
    family = FAMILIES["longformer"]  # 11 tokens, window of 4: layers see 12
    captured = capture(family.build(), family.batch(), layers=0, sites=("k",))
    assert captured[0].k.shape[2] == 12
    assert captured.tokens.mask.shape == (3, 12)
    assert captured.tokens.kinds[0][-1] == "padding"
    assert fit_tokens(captured.tokens, 12) is captured.tokens


def test_entities_follow_the_words():
    family = FAMILIES["luke-entities"]
    tokens = capture(family.build(), family.batch(), layers=0, sites=("k",)).tokens
    assert tokens.kinds[0] == ["word"] * 11 + ["entity"] * 2
    assert tokens.kinds[1][-1] == "padding"


def test_a_slice_of_tokens():
    tokens = token_info(nn.Identity(), torch.randn(4, 5, 3), token_count=5)
    assert len(tokens[1:3]) == 2
    assert tokens[1:3].mask.shape == (2, 5)


class Joint(nn.Module):
    """A module of two kinds of tokens."""

    def forward(self, hidden_states, encoder_hidden_states, extra=None): ...


@pytest.mark.parametrize(
    ("queries", "keys", "source"),
    [(7, 7, "self"), (4, 3, "cross"), (4, 7, "cross"), (7, 4, "cross"), (4, 4, "cross")],
)
def test_other_tokens_are_of_the_same_attention_where_queries_and_keys_are_both_together(
    queries, keys, source
):
    """4 tokens and 3 of another kind: joined on one axis they are self attention (MM-DiT)."""
    call = Call(*(torch.zeros(1, 2, count, 5) for count in (queries, keys, keys)), 1.0, None, torch.zeros(0))
    given = (torch.randn(1, 4, 10), torch.randn(1, 3, 10))
    assert source_of(SimpleNamespace(module=Joint(), args=given, kwargs={}), call) == source


def test_tokens_of_an_unknown_name_are_others_where_the_keys_are_as_many():
    x, extra = torch.randn(1, 5, 10), torch.randn(1, 3, 10)
    for keys, source in ((3, "cross"), (5, "self"), (8, "self")):
        call = Call(*(torch.zeros(1, 2, count, 4) for count in (5, keys, keys)), 1.0, None, torch.zeros(0))
        visit = SimpleNamespace(module=Joint(), args=(x, x), kwargs={"extra": extra})
        assert source_of(visit, call) == source
