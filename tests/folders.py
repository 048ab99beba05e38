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


def several_kinds_folder(folder: Path, name: str, tiles: bool = False) -> Path:
    """A model of `tests.captures.multimodal` with its tokenizer, or with the processor of its images and texts.

    With ``tiles`` SmolVLM cuts an image of 3 × 4 into twelve, and reads the whole beside them.
    """
    import transformers

    from tests.captures.multimodal import MODELS

    next(model for model in MODELS if model.name == name).build().save_pretrained(folder)
    tokenizer = _tokenizer_of_sixty()
    size = {"height": 32, "width": 32}
    if name in ("t5", "bart", "whisper"):
        tokenizer.save_pretrained(folder)
    elif name in ("clip", "siglip"):
        images = transformers.CLIPImageProcessor(size=size, crop_size=size, do_center_crop=False)
        transformers.CLIPProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(folder)
    elif name == "llava":
        images = transformers.CLIPImageProcessor(size=size, crop_size=size, do_center_crop=False)
        transformers.LlavaProcessor(
            image_processor=images, tokenizer=tokenizer, patch_size=8, vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ).save_pretrained(folder)  # fmt: skip
    elif name == "smolvlm":
        options = {
            "size": {"longest_edge": 128 if tiles else 32},
            "max_image_size": {"longest_edge": 32},
            "do_image_splitting": tiles,
        }
        images, videos = transformers.SmolVLMImageProcessor(**options), transformers.SmolVLMVideoProcessor()
        transformers.SmolVLMProcessor(
            image_processor=images, tokenizer=tokenizer, video_processor=videos, image_seq_len=4
        ).save_pretrained(folder)
    elif name.startswith("qwen"):
        options = {
            "patch_size": 4,
            "merge_size": 2,
            "temporal_patch_size": 2,
            "size": {"shortest_edge": 64, "longest_edge": 900},
        }
        images = transformers.Qwen2VLImageProcessor(**options)
        videos = transformers.Qwen2VLVideoProcessor(**options)
        kind = transformers.Qwen2VLProcessor if name == "qwen2-vl" else transformers.Qwen2_5_VLProcessor
        kind(image_processor=images, tokenizer=tokenizer, video_processor=videos).save_pretrained(folder)
    return folder


def _tokenizer_of_sixty():
    """Sixty words, among them the places of images that `tests.captures.multimodal` has."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    marks = {
        0: "<s>", 1: "<pad>", 2: "</s>", 3: "<unk>", 50: "<image>", 51: "<video>", 52: "<start>", 53: "<end>",
        54: "<fake>", 55: "<whole>", 56: "<end_of_utterance>",
    }  # fmt: skip
    words = iter(dict.fromkeys(word.strip(",.") for sentence in SENTENCES for word in sentence.split()))
    vocabulary = {marks.get(number) or next(words, f"word{number}"): number for number in range(60)}
    whole = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=whole, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
        extra_special_tokens={
            "image_token": "<image>", "video_token": "<video>", "vision_start_token": "<start>",
            "vision_end_token": "<end>", "fake_image_token": "<fake>", "global_image_token": "<whole>",
            "end_of_utterance_token": "<end_of_utterance>",
        },
    )  # fmt: skip
