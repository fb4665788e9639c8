"""A server with no room in its queue refuses large requests before it reads them."""

import numpy as np
import pytest

pytest.importorskip("fastapi")
import servers

import ragsys_kernels as rk
from ragsys_kernels.serving import Limits

QUERY = b'{"query":[1,0,0,0,' + b" " * 3000 + b"0]}"
MANY = b'{"k":1,"queries":[' + b",".join([QUERY] * 60) + b"]}"


@pytest.mark.parametrize(("queued", "queries", "status"), [(40, 60, 429), (39, 60, 200), (40, 80, 422)])
def test_large_requests_are_refused_unread_where_there_is_no_room(queued, queries, status):
    """What is no JSON shows which are read: it is 422 then."""

    async def use(client, service):
        service.batcher.queued = queued
        body = MANY if queries == 60 else MANY.replace(b'"query"', b'"q"')
        found = [(await client.post("/v1/select", content=content)).status_code for content in (body, body[:-1])]
        assert found == [status, 429 if status == 429 else 422]

    corpus = rk.Corpus(np.eye(5, dtype=np.float32))
    servers.run({"docs": corpus}, use, limits=Limits(queue=99, queries=60))
