"""The command line in a process of its own."""

import os
import subprocess
import sys

COMMAND = [sys.executable, "-m", "ragsys_kernels.cli"]
SELECT = ("select", "--corpus", "corpus.npy", "--queries", "queries.npy", "--out", "out")


def start(folder, *arguments, command=COMMAND):
    environment = {**os.environ, "NO_COLOR": "1", "TERMINAL_WIDTH": "100", "COLUMNS": "100"}
    return subprocess.run([*command, *map(str, arguments)], cwd=folder, capture_output=True, text=True, env=environment)
