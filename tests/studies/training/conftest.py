import pytest

from workbench.studies.training.recipes import Augmentation, Recipe


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    """Tests run side by side; more threads per test would only make them wait for one another."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small() -> Recipe:
    """Trains in two seconds and leaves the chance level behind at once: four patches, one layer."""
    return Recipe(
        task="digits",
        architecture={
            "name": "vit",
            "patch_size": 8,
            "embed_dim": 32,
            "depth": 1,
            "num_heads": 4,
            "pos_embed_std": 0.02,
        },
        epochs=3,
        batch_size=8,
        learning_rate=3e-3,
        weight_decay=0.01,
        checkpoints=(1,),
        augmentation=Augmentation(rotation=3.0),
    )
