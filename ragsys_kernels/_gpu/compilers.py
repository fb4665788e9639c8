"""What is known of Triton's compilers, which come with torch: 2.11 has 3.6, 2.12 and 2.13 3.7, 2.14 3.8, 2.15 3.9."""

from __future__ import annotations

import triton

# Major and minor number of the one that is installed.
TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])
