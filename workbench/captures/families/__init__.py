"""One file for each family of models: all that is known of it. They are loaded at the first question about a class."""
