"""Kernels that take several layers of a stacked model at once, for CUDA devices with Triton."""
