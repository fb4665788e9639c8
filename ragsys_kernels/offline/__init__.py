"""Jobs over files: selection (vectors in, Parquet shards out, in the memory of a chunk of queries), quality bias."""

from .._base.extras import needed

with needed("ragsys_kernels.offline", "cli"):
    import pyarrow  # noqa: F401

from .bias import BiasSummary, bias
from .build import build_corpus
from .change import Deleted, append_corpus, compact_corpus, delete_rows
from .check import JobStatus, status, verify
from .dedupe import DedupeSummary, dedupe
from .embed import EmbedSummary, embed
from .job import Summary, select
from .planning import Plan, plan
from .ray.selector import selector_for_ray
from .show import Pick, show
from .subset import SubsetSummary, subset
from .sync import Synced, sync_corpus

__all__ = [
    "BiasSummary",
    "DedupeSummary",
    "Deleted",
    "EmbedSummary",
    "JobStatus",
    "Pick",
    "Plan",
    "SubsetSummary",
    "Summary",
    "Synced",
    "append_corpus",
    "bias",
    "build_corpus",
    "compact_corpus",
    "dedupe",
    "delete_rows",
    "embed",
    "plan",
    "select",
    "selector_for_ray",
    "show",
    "status",
    "subset",
    "sync_corpus",
    "verify",
]
