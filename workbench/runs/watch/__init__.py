"""A model looked into while somebody else's code trains it: plain loops, Hugging Face's Trainer, Lightning."""

import lazy_loader

# Lightning is an optional package, and neither it nor transformers is needed for a plain loop.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "alerts": ["Alert", "scalars"],
        "core": ["watch", "Watch", "ANALYSES_WATCHED"],
        "lightning": ["LightningCallback"],
        "trainer_callback": ["HuggingFaceCallback"],
        "watch_folder": ["read_watch"],
    },
)
