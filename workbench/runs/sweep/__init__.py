"""Many models over thousands of inputs, in shards, on the cores of one machine or of a cluster."""

import lazy_loader

# on first use: `analyze` reads the parts of a sweep, and running one needs `analyze`
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={"running": ["parse_duration", "sweep"], "status": ["SweepStatus", "sweep_status"]},
)
