"""What every room stands on: errors, paths, hashes, selections, plug-ins, null distributions."""
