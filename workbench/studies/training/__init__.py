"""Training small models: recipes, tasks, the loop, and the folder that a run fills."""

import lazy_loader

# Reading a recipe must not cost the import of the training stack.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "runs": ["train"],
        "folder": ["TrainResult"],
        "efficiency": ["variant_costs", "published_costs", "papers_counts"],
        "recipes": ["Recipe", "load_recipe", "recipe_names"],
    },
)
