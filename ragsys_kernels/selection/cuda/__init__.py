"""The backend in CUDA C++, whose kernels are in csrc/cuda: what they are compiled as, and how they are launched."""
