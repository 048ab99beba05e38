"""How well a model does: on clean inputs, under attack, on corrupted and foreign inputs, on swapped words."""

import lazy_loader

# The command's help must not cost the import of torch.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "running": ["evaluate"],
        "protocols": ["PROTOCOLS"],
    },
)
