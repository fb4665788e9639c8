"""Lets ``opentelemetry-instrument ragsys-kernels serve --traces`` start: the entry point of pyproject.toml names this module.

That command has an option for each name here, without ``OTEL_``. Before Python 3.12 it takes what abbreviates its options
for them even behind the command that it starts, and ``--traces`` would abbreviate several, an error. An option of exactly
this name is no abbreviation, and what stands behind the command then goes to the command.
"""

OTEL_TRACES = "OTEL_TRACES"
