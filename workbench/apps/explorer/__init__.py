"""The explorer: look inside a layer, in JupyterLab or as a page of its own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
