"""What the GPU backends of every op share: CUDA sources and launches, Triton's compilers, variants."""
