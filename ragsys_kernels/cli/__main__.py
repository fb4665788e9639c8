"""``python -m ragsys_kernels.cli`` is ``ragsys-kernels``."""

from . import main

main()
