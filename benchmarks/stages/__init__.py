"""What `gpu_check.py` does on a machine with a GPU: stages of steps, each step a process of its own."""
