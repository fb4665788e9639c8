"""What the GPU backends of every op share: CUDA sources and launches, what Triton compiles, the static report."""
