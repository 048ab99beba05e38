"""Words swapped and windows slid, against naive loops."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from workbench.core.errors import InputError
from workbench.models.architectures import build_lm
from workbench.studies.evaluation.perplexity import encode, sliding_nll, swap_words
from workbench.studies.finite import not_finite

TEXT = "Tea, said the harbour-master, is not a drink: it's 4 o'clock."


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    model = build_lm(vocabulary=11, context=6, embed_dim=8, depth=2, num_heads=2).eval()
    return model.requires_grad_(False)


def naive(model, ids, window):
    """Every token from the `window` tokens before it, or as many as there are."""
    with torch.no_grad():
        return torch.tensor(
            [
                -model(ids[None, max(0, place - window) : place])[0, -1].log_softmax(-1)[ids[place]].item()
                for place in range(1, len(ids))
            ]
        )


@pytest.mark.parametrize("length", [2, 5, 6, 7, 8, 23, 90])
def test_the_sliding_window_is_a_loop_over_positions(small, length):
    ids = torch.randint(11, (length,), generator=torch.Generator().manual_seed(length))
    torch.testing.assert_close(sliding_nll(small, ids, 6), naive(small, ids, 6))
    torch.testing.assert_close(sliding_nll(small, ids, 4), naive(small, ids, 4))


@pytest.mark.parametrize("stride", [2, 3, 6])
@pytest.mark.parametrize("length", [7, 9, 13, 24])
def test_a_longer_stride_scores_every_position_once_from_no_fewer_tokens_than_it_leaves(
    small, length, stride
):
    ids = torch.randint(11, (length,), generator=torch.Generator().manual_seed(3))
    found = sliding_nll(small, ids, 6, stride)
    # The window that scores a place: the first moved window that reaches it, the last one ending at the text's end.
    starts = [0, *range(stride, length - 7, stride), max(length - 7, 0)]
    expected = []
    for place in range(1, length):
        start = next(s for s in starts if s + 6 >= place)
        logits = small(ids[None, start:place])[0, -1]
        expected.append(-logits.log_softmax(-1)[ids[place]])
    torch.testing.assert_close(found, torch.stack(expected))


def test_windows_that_cannot_be_are_refused(small):
    ids = torch.arange(9)
    with pytest.raises(InputError, match="at least 2"):
        sliding_nll(small, ids[:1], 6)
    with pytest.raises(InputError, match="1 to 6"):
        sliding_nll(small, ids, 6, 7)
    with pytest.raises(InputError, match="context=6"):
        sliding_nll(small, ids, 7)


def test_swapping_no_word_changes_nothing_and_all_words_leave_only_what_lies_between():
    same = swap_words(TEXT, 0, np.random.default_rng(0))
    assert same.text == TEXT
    assert same.kept.all()
    all_swapped = swap_words(TEXT, 1, np.random.default_rng(0))
    assert all_swapped.text == re.sub(r"\w+", "AAA", TEXT)


@pytest.mark.parametrize("share", [0.1, 0.35, 0.8])
def test_the_stated_share_of_words_is_swapped_and_marked(share):
    words = re.findall(r"\w+", TEXT)
    swapped = swap_words(TEXT, share, np.random.default_rng(2))
    found = re.findall(r"\w+", swapped.text)
    assert len(found) == len(words)
    assert found.count("AAA") == round(share * len(words))
    assert len(swapped.kept) == len(swapped.text)
    lost = "".join(character for character, kept in zip(swapped.text, swapped.kept, strict=True) if not kept)
    assert lost == "AAA" * found.count("AAA")


def test_a_larger_share_swaps_the_same_words_and_more():
    few, many = (
        re.findall(r"\w+", swap_words(TEXT, share, np.random.default_rng(5)).text) for share in (0.2, 0.6)
    )
    assert {place for place, word in enumerate(few) if word == "AAA"} < {
        place for place, word in enumerate(many) if word == "AAA"
    }
    with pytest.raises(InputError, match="between 0 and 1"):
        swap_words(TEXT, 1.5, np.random.default_rng(0))


def test_a_token_is_kept_where_all_of_its_characters_are():
    spans = [(0, 2), (2, 4), (4, 6), (6, 6)]
    tokenizer = SimpleNamespace(
        tokenizer=lambda text, **asked: {"input_ids": [5, 6, 7, 8], "offset_mapping": spans}
    )
    ids, whole = encode(tokenizer, "abcdef", np.array([True, True, True, False, False, False]))
    assert ids.tolist() == [5, 6, 7, 8]
    assert whole.tolist() == [True, False, False, True]


def test_the_first_layer_whose_output_is_not_finite_is_named():
    layers = nn.Sequential(nn.Identity(), nn.Softplus(), nn.Linear(1, 1), nn.Identity())
    with torch.no_grad():
        layers[2].weight.fill_(3e38)
        layers[2].bias.fill_(0.0)
    message = str(not_finite("losses", layers, torch.tensor([[10.0]])))
    assert "the first layer whose output is not is 2" in message
    assert "but every layer's output is" in str(not_finite("losses", layers, torch.tensor([[0.01 - 20]])))
    assert "nor is its input" in str(not_finite("losses", layers, torch.tensor([[torch.nan]])))
    layers[2].bias.data.fill_(torch.inf)
    assert "the first of them 2.bias" in str(not_finite("losses", layers, torch.zeros(1, 1)))
