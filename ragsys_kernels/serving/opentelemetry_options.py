"""Lets ``opentelemetry-instrument ragsys-kernels serve --traces`` start: pyproject.toml has it as an entry point.

That command has an option for each name here, without ``OTEL_``. Before Python 3.12 it takes whatever abbreviates its
options for them, even behind the command that it starts, and ``--traces`` would abbreviate several, an error. An option
of exactly this name is no abbreviation, and what stands behind the command goes to the command.
"""

OTEL_TRACES = "OTEL_TRACES"
