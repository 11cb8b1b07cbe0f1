"""Code that the functions of all libraries share: names, checks, batches, docstrings, the native calls."""
