"""The CUDA backend: which kernels there are, how they are compiled and how they are launched."""
