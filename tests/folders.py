"""Folders of tiny models with real tokenizers, written by the libraries, as a user would have them."""

from __future__ import annotations

from pathlib import Path

import torch

SENTENCES = [
    "the harbour was quiet before the boats came in",
    "a clock strikes twelve and nobody in the town hears it",
    "bread needs time, salt and a warm corner of the kitchen",
    "she measured the rain every morning for forty years",
]


def bert_folder(folder: Path, layers: int = 2) -> Path:
    """BERT of width 24 with 3 heads and 40 positions; WordPiece over the sentences' words and letters."""
    from transformers import BertConfig, BertModel, BertTokenizer

    words = sorted({word.strip(",.") for sentence in SENTENCES for word in sentence.split()})
    letters = "abcdefghijklmnopqrstuvwxyz,."
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *words,
        *letters,
        *(f"##{c}" for c in letters),
    ]
    tokens = list(dict.fromkeys(vocabulary))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(tokens)})
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=24,
        num_hidden_layers=layers,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=40,
        pad_token_id=0,
    )
    torch.manual_seed(1)  # not 0, which is what `load` draws random weights with
    BertModel(config).save_pretrained(folder)
    return folder


def gpt2_folder(folder: Path) -> Path:
    """GPT-2 of width 20 with 2 heads and 30 positions, and a byte-level BPE without a padding token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    bpe.train_from_iterator(SENTENCES, trainer)
    end = "<|endoftext|>"
    PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=end, eos_token=end).save_pretrained(folder)
    config = GPT2Config(
        vocab_size=bpe.get_vocab_size(),
        n_embd=20,
        n_layer=2,
        n_head=2,
        n_positions=30,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(1)  # not 0, which is what `load` draws random weights with
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def vit_folder(folder: Path) -> Path:
    """ViT for 20×20 images in patches of 5, with a processor that normalises by 0.4 and 0.2."""
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    config = ViTConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=20,
        patch_size=5,
    )
    torch.manual_seed(1)  # not 0, which is what `load` draws random weights with
    ViTModel(config).save_pretrained(folder)
    size = {"height": 20, "width": 20}
    ViTImageProcessor(size=size, image_mean=[0.4] * 3, image_std=[0.2] * 3).save_pretrained(folder)
    return folder
