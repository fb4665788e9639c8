"""What is timed, and the names by which the ledgers know it."""

OURS = "ragsys_kernels"
FLOOR = "read floor"
PRODUCT = "matrix product"
