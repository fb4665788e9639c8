"""``python -m ragsys_kernels`` prints the configuration."""

from ._info import show_config

show_config()
