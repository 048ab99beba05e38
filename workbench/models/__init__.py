"""`load(spec)`: the catalog, the hub, a file for every source, and our small architectures."""
