"""One analysis over a model and its inputs: at once, over many shards, or while a model trains."""
