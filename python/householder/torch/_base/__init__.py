"""Code that all wings need: checks of arguments, dtypes, layouts, autocast, and undocumented names of torch."""
