"""``python -m ragsys_kernels`` prints the configuration; with arguments it is the command line."""

import sys

if __name__ == "__main__":
    if len(sys.argv) > 1:
        from .cli import main

        main()
    else:
        from ._info import show_config

        show_config()
