"""The functions of NumPy's and CuPy's arrays."""
