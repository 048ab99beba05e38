"""The base of every room: errors, paths, hashes, selections, plug-ins, null distributions."""
