"""Benchmarks of the GPU, and what is known about it without one."""
