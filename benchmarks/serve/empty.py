"""A server with nothing to do: it reads a body and answers with two bytes: `python -m benchmarks.serve.empty PORT`."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"2")]


async def app(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": b"{}"})


if __name__ == "__main__":
    uvicorn.run(
        app, host="127.0.0.1", port=int(sys.argv[1]), loop="uvloop", http="httptools", ws="none", lifespan="off",
        access_log=False, log_level="error", server_header=False,
    )  # fmt: skip
