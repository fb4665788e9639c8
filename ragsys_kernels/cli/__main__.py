"""``python -m ragsys_kernels.cli`` is ``ragsys-kernels``."""

from . import main

if __name__ == "__main__":
    main()
