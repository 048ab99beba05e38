"""The tidy frame: its columns, how measurements become one, where it comes from, its files and tables."""
