"""What a job says of Ray."""

from __future__ import annotations

from dataclasses import dataclass

from ..._base import checks
from .._options import JobSpec

WAIT = 45.0  # seconds for an actor that was lost to be started again
START = 600.0  # seconds at most for the first start of a process
SILENT = 5.0  # seconds without an answer to a question that takes none, after which one is told


@dataclass(frozen=True)
class RayOptions:
    """How many workers, what each and each holder is given, the cluster, and how long a lost one is waited for.

    None: as many workers as fit, a CPU for each holder where there are as many, and where Ray runs.
    """

    workers: int | None = None
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    cpus_per_holder: float | None = None
    address: str | None = None
    wait: float = WAIT

    @property
    def each(self) -> dict[str, float]:
        """What a worker reserves."""
        return {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker}

    @classmethod
    def of(cls, spec: JobSpec) -> RayOptions | None:
        """Return what a job says of Ray, None where it runs in this process."""
        checks.choice("select", "engine", spec.engine, ("local", "ray"))
        if spec.engine == "local":
            for name in (
                "workers",
                "cpus_per_worker",
                "gpus_per_worker",
                "cpus_per_holder",
                "ray_address",
                "ray_timeout",
            ):
                if (value := getattr(spec, name)) is not None:
                    raise ValueError(f"select: {name} must come with engine 'ray', got {value!r} alone")
            return None
        if spec.gpus_per_worker and spec.device is None:
            raise ValueError(f"select: gpus_per_worker must come with a device, got {spec.gpus_per_worker!r} alone")
        cpus = 1 if spec.cpus_per_worker is None else spec.cpus_per_worker
        gpus = (0 if spec.device is None else 1) if spec.gpus_per_worker is None else spec.gpus_per_worker
        if spec.workers is not None and spec.workers < 1:
            raise ValueError(f"select: workers must be at least 1, got {spec.workers}")
        if not cpus > 0:
            raise ValueError(f"select: cpus_per_worker must be above 0, got {cpus}")
        if not gpus >= 0:
            raise ValueError(f"select: gpus_per_worker must not be negative, got {gpus}")
        if spec.cpus_per_holder is not None and spec.memory is None:
            raise ValueError(f"select: cpus_per_holder must come with memory, got {spec.cpus_per_holder} alone")
        if spec.cpus_per_holder is not None and not spec.cpus_per_holder >= 0:
            raise ValueError(f"select: cpus_per_holder must not be negative, got {spec.cpus_per_holder}")
        wait = WAIT if spec.ray_timeout is None else spec.ray_timeout
        if not wait > 0:
            raise ValueError(f"select: ray_timeout must be above 0 seconds, got {wait}")
        return cls(spec.workers, cpus, gpus, spec.cpus_per_holder, spec.ray_address, wait)
