"""What all wings need: checks of arguments, dtypes, layouts, autocast, and what torch keeps to itself."""
