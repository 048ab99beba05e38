"""`load(spec)`: the catalog, the hub, a file for every source, and small architectures of our own."""
