"""The benchmarks of the processor: problems, contenders, and what is timed."""
