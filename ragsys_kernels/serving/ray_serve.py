"""The service as a deployment of Ray Serve: replicas of the same application, and handles for callers inside Ray.

Ray Serve's HTTP proxy takes much longer for a request than a selection does. Callers inside Ray use a handle, which
does without it; for HTTP alone, ``ragsys-kernels serve --workers`` behind a load balancer is the quicker layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .limits import RefusedError

if TYPE_CHECKING:
    import pyarrow as pa

    from .service import Service


def ray_deployment(
    corpora: Mapping[str, str],
    *,
    num_replicas: int | str = 1,
    num_cpus: int = 1,
    max_ongoing_requests: int = 64,
    **options: Any,
) -> Any:
    """Make an application of Ray Serve, for ``serve.run`` or ``serve run module:app``.

    Parameters
    ----------
    corpora : mapping of names to folders
        Every node that may have a replica must see the folders; replicas of a node share their memory.
    num_replicas : int or "auto"
    num_cpus : int
        Processors of a replica, and threads of its kernel calls.
    max_ongoing_requests : int
        Requests that a replica has at once: those that wait become the next kernel call.
    **options
        As `Service` takes them; a device other than the CPU reserves a GPU for each replica.

    Returns
    -------
    ray.serve.Application
        HTTP routes are those of the server. Handles have ``select(table, **rules)``: an Arrow table of queries in the
        columns of ``/v1/select``, rules as its URL has them (``corpus="docs"``, ``k=6``, ``pool=None``) or lists of ids
        (``exclude=[3, 8]``) for all queries, an Arrow table of picks back; ValueError for what breaks a rule.

    Examples
    --------
    >>> app = ray_deployment({"docs": "/shared/docs"}, num_replicas=4)  # in module.py; then: serve run module:app
    >>> handle = serve.run(app, name="selection")
    >>> picks = handle.select.remote(pa.table({"vector": vectors}), k=6).result()
    """
    from ray import serve

    folders, settings = dict(corpora), {"num_threads": num_cpus, **options}

    def build() -> Any:
        from ragsys_kernels.serving import make_service

        return make_service(folders, **settings).asgi

    class Selection:
        """One replica."""

        app: Any  # what `build` returned, by Ray Serve

        async def select(self, table: pa.Table, **rules: Any) -> pa.Table:
            from ragsys_kernels.serving.ray_serve import answered

            return await answered(self.app.service, table, rules)

    actor = {"num_cpus": num_cpus, "num_gpus": 0 if settings.get("device", "cpu") == "cpu" else 1}
    deployed = serve.deployment(
        name="selection",
        num_replicas=num_replicas,
        max_ongoing_requests=max_ongoing_requests,
        ray_actor_options=actor,
    )
    return deployed(serve.ingress(build)(Selection)).bind()


async def answered(service: Service, table: pa.Table, rules: Mapping[str, Any]) -> pa.Table:
    """Return the picks of a table of queries.

    Raises
    ------
    ValueError
        A rule is broken for all queries.
    RuntimeError
        The queue is full.
    """
    import pyarrow as pa

    from .routes.arrow_answers import batch_of
    from .routes.select_arrow import asked_of

    common = dict(rules)
    try:
        served = service.corpora.without(common.pop("corpus", None))
        asked = await service.beside(len(table) > 1, asked_of, table, common, served, service.limits)
        await service.batcher.answer(asked)
    except RefusedError as error:  # which does not travel between processes
        kind: type[Exception] = RuntimeError if error.status in (429, 503) else ValueError
        raise kind(str(error)) from None
    answer = await service.beside(asked.count > 1, batch_of, asked)
    return pa.Table.from_batches([answer])
