"""The applications: command line, explorer, rendering of notebooks, doctor."""
