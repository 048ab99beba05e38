"""The callbacks in real trainings of Hugging Face's Trainer and of Lightning, under both of its names."""

import importlib

import pytest
import torch
import transformers
from torch.nn import functional as F
from torch.utils.data import DataLoader

import workbench
from tests.runs.watch.loops import CLASSES, gpt2, images, padded_texts, same_bits, vit
from workbench.runs.watch import HuggingFaceCallback, LightningCallback

ANALYSES = {"token-similarity": {}, "projection-error": {"null_samples": 0}}


def steps(folder):
    return list(workbench.read_watch(folder).attrs["epochs"].values())


def finetune(out, callbacks, **settings):
    texts = padded_texts((9, 4, 7, 5, 8, 6))
    rows = [
        {key: value[number] for key, value in (texts | {"labels": texts["input_ids"]}).items()}
        for number in range(6)
    ]
    arguments = transformers.TrainingArguments(
        output_dir=str(out), per_device_train_batch_size=1, num_train_epochs=2, report_to=[], save_strategy="no",
        disable_tqdm=True, use_cpu=True, seed=3, **settings,
    )  # fmt: skip
    trainer = transformers.Trainer(gpt2(), arguments, train_dataset=rows, callbacks=callbacks)
    trainer.train()
    return trainer.model.state_dict()


@pytest.mark.parametrize(
    "settings",
    [{}, {"gradient_accumulation_steps": 3, "gradient_checkpointing": True}],
    ids=["plain", "accumulated, checkpointed"],
)
def test_hugging_face(tmp_path, settings):
    callback = HuggingFaceCallback(padded_texts(), every=2, max_cost=None, analyses=ANALYSES)
    watched = finetune(tmp_path, [callback], **settings)
    same_bits(watched, finetune(tmp_path / "alone", [], **settings))
    last = 12 // settings.get("gradient_accumulation_steps", 1)
    assert steps(tmp_path / "watch") == list(range(0, last + 1, 2))
    frame = workbench.read_watch(tmp_path / "watch", "token-similarity")
    assert set(frame["model"]) == {"GPT2LMHeadModel"}
    assert frame.groupby("checkpoint")["value"].mean().nunique() == len(steps(tmp_path / "watch"))


def lightning_model(name):
    module = importlib.import_module(name)

    class Classifier(module.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = vit(proj_drop_rate=0.2)

        def training_step(self, batch, _):
            return F.cross_entropy(self.net(batch), torch.randint(0, CLASSES, (len(batch),)))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-2)

    return module, Classifier()


def fit(name, out, callbacks, **settings):
    module, model = lightning_model(name)
    torch.manual_seed(4)
    trainer = module.Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=out, callbacks=callbacks, log_every_n_steps=1, **settings,
    )  # fmt: skip
    trainer.fit(model, DataLoader(images(8), batch_size=2, shuffle=True))
    return model.state_dict()


# Where there are many cores it advises more workers for a loader, which eight images do not need.
@pytest.mark.filterwarnings("ignore:.*:UserWarning:.*lightning.*")
@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"accumulate_grad_batches": 2, "precision": "bf16-mixed"}],
    ids=["plain", "accumulated, mixed"],
)
def test_lightning(tmp_path, name, settings):
    callback = LightningCallback(
        images(3), submodule="net", every=2, max_cost=None, analyses=ANALYSES, name="classifier"
    )
    watched = fit(name, tmp_path, [callback], **settings)
    same_bits(watched, fit(name, tmp_path, [], **settings))
    last = 8 // settings.get("accumulate_grad_batches", 1)
    assert steps(tmp_path / "watch") == list(range(0, last + 1, 2))
    assert set(workbench.read_watch(tmp_path / "watch")["model"]) == {"classifier"}


def test_a_process_that_is_not_the_first_makes_no_watch(tmp_path):
    class State:
        is_world_process_zero = False
        is_global_zero = False
        global_step = 0

    hugging_face, lightning = HuggingFaceCallback(images()), LightningCallback(images())
    hugging_face.on_train_begin(None, State, None, model=vit())
    hugging_face.on_step_end(None, State, None)
    hugging_face.on_train_end(None, State, None)
    lightning.on_train_start(State, vit())
    lightning.on_train_batch_end(State, vit(), None, None, 0)
    lightning.on_train_end(State, vit())
    assert hugging_face.watch is None
    assert lightning.watch is None
