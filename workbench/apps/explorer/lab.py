"""JupyterLab, whose kernels find imported what the explorer needs: `python -m workbench.apps.explorer.lab OPTION…`."""

from __future__ import annotations

import sys

from workbench.apps.explorer.launch import IMPORTS
from workbench.apps.rendering.kernels import import_early

if __name__ == "__main__":
    import_early(IMPORTS)  # while Lab and the page start
    from jupyterlab.labapp import main

    sys.exit(main())
