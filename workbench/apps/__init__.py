"""What a person starts: the command line, the explorer, rendering of notebooks, the doctor."""
