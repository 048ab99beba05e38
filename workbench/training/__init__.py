"""Training small models: recipes, tasks, the loop, and checkpoints that carry what is needed to use them."""

import lazy_loader

# Reading a checkpoint must not cost the import of the training stack.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "runs": ["train"],
        "folder": ["TrainResult"],
        "recipes": ["Recipe", "load_recipe", "recipe_names"],
        "checkpoints": ["read_checkpoint", "read_torch_file", "restore", "write_checkpoint"],
    },
)
