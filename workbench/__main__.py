"""`python -m workbench` is the `workbench` command."""

from workbench.apps.cli import main

if __name__ == "__main__":
    main()
