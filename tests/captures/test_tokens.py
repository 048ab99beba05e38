"""Token labels, kinds, grid and mask without the help of inputs()."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import workbench
from tests.captures.families import FAMILIES
from workbench.captures import capture, fit_tokens, patch_grid, token_info
from workbench.captures.layer_records import Call, LayerRecord
from workbench.captures.token_labels import readable_token, source_of


def test_words_and_padding():
    tokens = token_info(
        nn.Identity(), {"input_ids": torch.tensor([[5, 6, 0]]), "attention_mask": torch.tensor([[1, 1, 0]])}
    )
    assert tokens.labels == [["5", "6", "0"]]
    assert tokens.kinds == [["word", "word", "padding"]]
    assert tokens.mask.tolist() == [[True, True, False]]


@pytest.mark.parametrize("word", ["我们", "Привет", "😀", "naïve", " tea", "שלום"])
def test_a_byte_level_piece_is_the_text_that_its_tokenizer_decodes(word):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator([word] * 3, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe)
    (number,) = tokenizer(word)["input_ids"]
    assert readable_token(tokenizer, tokenizer.convert_ids_to_tokens(number), number) == word
    part = tokenizer.convert_ids_to_tokens(tokenizer.convert_tokens_to_ids("æ"))
    assert readable_token(tokenizer, part, tokenizer.convert_tokens_to_ids("æ")) == "æ"


def test_a_piece_that_is_not_byte_level_stays():
    tokenizer = SimpleNamespace(all_special_ids=[], decode=lambda ids, **_: "Ã©")
    assert [readable_token(tokenizer, piece, 1) for piece in ("Ã©", "▁the", "##ing")] == [
        "Ã©",
        "▁the",
        "##ing",
    ]


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


def test_keys_of_other_rows_than_the_inputs_do_not_decide_what_is_padding():
    """A model that stacks two pictures of each of 3 inputs runs 6 rows of 5 tokens."""
    tokens = token_info(nn.Identity(), torch.randn(3, 4, 2), 4)
    visible = torch.ones(6, 5, dtype=torch.bool)
    visible[:, 4:] = False
    assert fit_tokens(tokens, 5, visible).mask.all()
    assert not fit_tokens(tokens, 5, visible[:3]).mask[:, 4:].any()


class SoftPrompt(nn.Module):
    """An encoder of words that puts ``added`` learned tokens before them, as prompt tuning and class tokens do."""

    def __init__(self, added: int) -> None:
        super().__init__()
        self.embedding, self.prompt = nn.Embedding(60, 16), nn.Parameter(torch.randn(added, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, input_ids, attention_mask):
        x = torch.cat([self.prompt.expand(len(input_ids), -1, -1), self.embedding(input_ids)], dim=1)
        padded = nn.functional.pad(attention_mask == 0, (len(self.prompt), 0), value=False)
        return self.encoder(x, src_key_padding_mask=padded)


@pytest.mark.parametrize("added", [1, 3])
def test_tokens_that_the_model_adds_are_numbered_and_real(added):
    torch.manual_seed(0)
    model = SoftPrompt(added).eval()
    batch = {"input_ids": torch.randint(0, 60, (2, 6)), "attention_mask": torch.ones(2, 6)}
    batch["attention_mask"][1, 4:] = 0
    captured, layers = capture(model, batch), []
    capture(model, batch, each=lambda record, tokens: layers.append(tokens))
    for tokens in (captured.tokens, captured.tokens_of(1), *layers):
        assert tokens.labels[0] == [str(number) for number in range(6 + added)]
        assert tokens.kinds == [["token"] * (6 + added), ["token"] * (4 + added) + ["padding"] * 2]
        assert tokens.mask.sum(1).tolist() == [6 + added, 4 + added]
    attn = captured[0].attn[1, :, : 4 + added].double()
    entropy = torch.special.entr(attn).sum(-1).mean(-1)
    frame = workbench.analyze("attention-map", model, batch)
    rows = frame[(frame["metric"] == "attention_entropy") & (frame["layer"] == 0) & (frame["input"] == "1")]
    values = rows.dropna(subset=["head"]).sort_values("head")["value"]
    assert values.tolist() == pytest.approx(entropy.tolist(), rel=1e-6)


def test_tokens_before_padding_to_a_longer_maximum_are_no_padding():
    """Three tokens before, padding of three behind: keys that may be seen are no longer than the words."""
    batch = {"input_ids": torch.ones(1, 6, dtype=torch.long), "attention_mask": torch.ones(1, 6)}
    batch["attention_mask"][0, 3:] = 0
    captured = capture(SoftPrompt(3).eval(), batch)
    assert captured.tokens.kinds == [["token"] * 6 + ["padding"] * 3]


def vit(**options):
    import timm

    return timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=0, **options)


def metrics(model, images):
    frame = workbench.analyze("attention-map", model, images)
    return {*frame["metric"]}, " ".join(frame.attrs["notes"])


def test_a_padded_image_has_its_last_patches():
    model = vit(dynamic_img_size=True, dynamic_img_pad=True).eval()
    tokens = capture(model, torch.randn(1, 3, 50, 83), sites=["k"]).tokens
    assert tokens.grid == (4, 6)
    assert tokens.labels[0][-1] == "3,5"
    assert "attention_distance" in metrics(model, torch.randn(1, 3, 50, 83))[0]


def test_overlapping_patches_are_counted_as_the_convolution_cuts_them():
    project = nn.Conv2d(3, 8, 7, stride=4, padding=3)
    module = nn.ModuleDict({"proj": project})
    module.patch_size = 7
    rows, columns = project(torch.zeros(1, 3, 33, 50)).shape[2:]
    assert patch_grid(module, (33, 50)) == (rows, columns)


def test_dropped_patches_have_no_places_and_a_note():
    model = vit(img_size=64, patch_drop_rate=0.5).train()
    captured = capture(model, torch.randn(1, 3, 64, 64), sites=["k"])
    assert captured[0].k.shape[2] == 9
    assert captured.tokens_of(0).kinds == [["token"] * 9]
    names, notes = metrics(model, torch.randn(1, 3, 64, 64))
    assert "attention_distance" not in names
    assert "have no attention_distance" in notes


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


def test_the_title_of_a_layer_names_what_is_unusual():
    def title(**more):
        return LayerRecord(3, "blocks.3.attn", **more).title

    assert title() == "layer 3 blocks.3.attn"
    assert title(call=2) == "layer 3 blocks.3.attn call 2"
    assert title(kind="channel", source="cross") == "layer 3 channel cross blocks.3.attn"
