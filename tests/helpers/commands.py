"""The command line in a process of its own, and a command of a job."""

import sys

COMMAND = [sys.executable, "-m", "ragsys_kernels.cli"]
SELECT = ("select", "--corpus", "corpus.npy", "--queries", "queries.npy", "--out", "out")
