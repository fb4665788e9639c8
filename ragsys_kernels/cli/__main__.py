"""``python -m ragsys_kernels.cli`` is ``ragsys-kernels``."""

from ragsys_kernels.cli import main

main()
