"""Benchmarks: what is where is in README.md."""
