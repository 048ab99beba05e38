"""Training small models: recipes, tasks, the loop, and the folder that a run fills."""

import lazy_loader

# Reading a recipe must not cost the import of the training stack.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "efficiency": ["cost_findings", "papers_counts", "published_costs", "variant_costs"],
        "recipes": ["Recipe", "load_recipe", "recipe_names"],
        "run_folder": ["TrainResult"],
        "runs": ["train"],
        "task_efficiency": ["published_task_costs", "task_cost_findings", "task_costs"],
    },
)
