"""All tables, pages and plots: `python -m benchmarks.reports`."""

from benchmarks.reports.speed import main

main()
