"""Demonstrations, and jobs over files against bare kernels."""
