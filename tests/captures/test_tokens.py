"""Token labels, kinds, grid and mask without the help of inputs()."""

from __future__ import annotations

import torch
from torch import nn

from tests.captures.families import FAMILIES
from workbench.captures import capture, fit_tokens, token_info


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
