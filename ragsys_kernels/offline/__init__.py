"""Selection over files: vectors in, Parquet shards out, memory bounded by a chunk of queries."""

try:
    import pyarrow  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "ragsys_kernels.offline needs pyarrow: pip install 'ragsys_kernels[cli]'", name=error.name
    ) from error

from ragsys_kernels.offline.job import Summary, select

__all__ = ["Summary", "select"]
