"""Jobs over files: selection (vectors in, Parquet shards out, in the memory of a chunk of queries), quality bias."""

from ragsys_kernels._extras import needed

with needed("ragsys_kernels.offline", "cli"):
    import pyarrow  # noqa: F401

from ragsys_kernels.offline.bias import BiasSummary, bias
from ragsys_kernels.offline.check import JobStatus, status, verify
from ragsys_kernels.offline.job import Summary, select
from ragsys_kernels.offline.ray_selector import selector_for_ray

__all__ = ["BiasSummary", "JobStatus", "Summary", "bias", "select", "selector_for_ray", "status", "verify"]
