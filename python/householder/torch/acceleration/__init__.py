"""Models of other libraries, computed by our functions."""
