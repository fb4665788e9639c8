"""The command ``serve``: selection as a service over HTTP."""

from __future__ import annotations

import ipaddress
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._base.env import num_threads
from .._base.extras import needed
from .._base.files import check_local, first_line
from ._app import COLUMNS, RULE, RUN, app, one_line_errors, option

if TYPE_CHECKING:
    from ..serving.texts import TextFile

LISTEN, LIMITS = "Listening", "Limits"


@app.command()
def serve(
    corpus: Annotated[
        list[str] | None,
        option(
            RULE,
            "A corpus and the folder that Corpus.save wrote; more than once. Without one, queries have to come with "
            "the vectors of their candidates.",
            metavar="NAME=FOLDER",
        ),
    ] = None,
    unknown: Annotated[
        str,
        option(
            RULE,
            "How to treat an id that is not in the corpus if the request does not say it: error (the query fails) or "
            "skip (it is answered without the id).",
        ),
    ] = "error",
    host: Annotated[str, option(LISTEN, "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option(LISTEN, "Port; 0 takes a free one.", min=0, max=65535)] = 8080,
    flight_port: Annotated[
        int | None,
        option(
            LISTEN, "Port of Arrow Flight; of several workers each takes the next one. Default: none.", min=1, max=65535
        ),
    ] = None,
    token: Annotated[str | None, option(LISTEN, "Requests must have it as their bearer token.")] = None,
    token_file: Annotated[
        Path | None,
        option(
            LISTEN,
            "File of the tokens, read again when it changes: lines TOKEN [name=NAME] [role=read|admin] "
            "[queries_per_second=N] [queries_in_flight=N]. Unlike --token no process list shows it.",
        ),
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        option(
            LISTEN,
            "Names that requests may be for (Host, and Origin of pages), beside the address and localhost; more than "
            "once; '*': any. Default: with a token any, without one no other.",
        ),
    ] = None,
    allowed_origins: Annotated[
        list[str] | None,
        option(
            LISTEN,
            "Origins of pages of other sites that may call, as https://search.example (CORS); more than once; with a "
            "token '*': any. Default: none.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, option(LISTEN, "File of the certificate chain, PEM, read again when it changes: serves HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, option(LISTEN, "File of its key, if it is not in the same.")] = None,
    insecure: Annotated[bool, option(LISTEN, "Listen on a public address without a token.")] = False,
    device: Annotated[str, option(RUN, "Where the rows are held: cpu, cuda, cuda:1, ...")] = "cpu",
    workers: Annotated[int, option(RUN, "Processes that answer; they share the memory of the corpora.", min=1)] = 1,
    threads: Annotated[
        int | None, option(RUN, "Threads of a kernel call of each worker; default: processors / workers.", min=1)
    ] = None,
    batch_wait_us: Annotated[
        int, option(RUN, "Microseconds that a request waits for others although nothing runs.", min=0)
    ] = 0,
    load_from: Annotated[
        Path | None,
        option(
            RULE,
            "Folder whose folders may be loaded as corpora while the server runs, by PUT /v1/corpora/NAME with a token "
            "of an admin. Default: none may.",
        ),
    ] = None,
    texts: Annotated[
        list[str] | None,
        option(
            RULE,
            "Texts of a corpus: a Parquet file, a folder of such, or an Arrow file; with several corpora NAME=FILE, "
            "more than once. Answers have them on request, and the page / shows them.",
            metavar="FILE",
        ),
    ] = None,
    text_column: Annotated[str, option(COLUMNS, "Column of the texts.")] = "text",
    text_id_column: Annotated[
        str | None,
        option(COLUMNS, "Column of the ids beside the texts.", show_default="id; of a corpus without ids none"),
    ] = None,
    encoder: Annotated[
        str | None,
        option(
            RUN,
            "Makes vectors of queries that are texts, on the page and in /rerank: minilm or mpnet (extra encoders), a "
            "folder of sentence-transformers, or the URL of an OpenAI-shaped embeddings endpoint.",
            metavar="MODEL|URL",
        ),
    ] = None,
    encoder_model: Annotated[str | None, option(RUN, "The model that the URL of an encoder is asked for.")] = None,
    encoder_token_file: Annotated[Path | None, option(RUN, "File whose first line is the encoder's token.")] = None,
    verify: Annotated[
        bool,
        option(
            RUN,
            "Compare the corpora with their checksums when they are loaded, once for all workers.",
            "--verify/--no-verify",
        ),
    ] = True,
    watch: Annotated[
        bool, option(RUN, "Load a folder anew as soon as it has another version; no request fails.", "--watch")
    ] = False,
    drain: Annotated[
        float,
        option(RUN, "Seconds after SIGTERM in which further connections and requests are still answered.", min=0),
    ] = 2,
    grace: Annotated[float, option(RUN, "Seconds that requests under way have after that.", min=1)] = 30,
    access_log: Annotated[bool, option(RUN, "Print a line of JSON for each request.")] = True,
    traces: Annotated[
        bool,
        option(
            RUN,
            "Trace requests by OpenTelemetry's instrumentation of ASGI, which has to be installed; /v1/select takes "
            "longer then.",
            "--traces",
        ),
    ] = False,
    gzip_bytes: Annotated[
        int | None,
        option(
            RUN,
            "Compress answers of at least so many bytes for clients that accept gzip. Default: none, for a network "
            "is mostly quicker than gzip.",
            min=1,
        ),
    ] = None,
    max_body: Annotated[int, option(LIMITS, "Bytes of a request.", min=1)] = 32 << 20,
    max_header: Annotated[int, option(LIMITS, "Bytes of a request's headers.", min=1)] = 1 << 16,
    max_queries: Annotated[int, option(LIMITS, "Queries of a request.", min=1)] = 4096,
    max_queue: Annotated[int, option(LIMITS, "Queries that may wait.", min=1)] = 16_384,
    max_connections: Annotated[int, option(LIMITS, "Connections at the same time.", min=1)] = 4096,
    max_requests: Annotated[int, option(LIMITS, "Requests at the same time.", min=1)] = 1024,
    max_memory: Annotated[int, option(LIMITS, "Bytes of all requests and answers at the same time.", min=1)] = 1 << 30,
    timeout_ms: Annotated[int, option(LIMITS, "Milliseconds that a request may take.", min=1)] = 30_000,
    idle_seconds: Annotated[float, option(LIMITS, "Seconds that an idle connection stays open.", min=0.1)] = 60,
    body_seconds: Annotated[float, option(LIMITS, "Seconds that a body may take to arrive.", min=0.1)] = 20,
    write_seconds: Annotated[
        float, option(LIMITS, "Seconds that a client may take for an answer, or each MiB of a longer one.", min=0.1)
    ] = 20,
) -> None:
    """Serve selections over HTTP: POST /v1/select, /rerank; GET /health, /info, /metrics, /openapi.json.

    SIGHUP loads the folders anew, --watch does so by itself. SIGTERM ends the server when it has answered what is under
    way.
    """
    with one_line_errors("serve", "interrupted"), needed("serve", "serve"):
        from ..serving.limits import Limits
        from ..serving.listening import bound
        from ..serving.server import Settings, run
        from ..serving.workers import serve as run_workers

        if unknown not in ("error", "skip"):
            raise ValueError(f"serve: unknown must be one of 'error', 'skip', got {unknown!r}")
        files = {
            "token_file": token_file, "tls_cert": tls_cert, "tls_key": tls_key, "load_from": load_from,
            "encoder_token_file": encoder_token_file,
        }  # fmt: skip
        for argument, path in files.items():
            if path is not None:
                check_local("serve", argument, path)
        settings = Settings(
            corpora=_corpora(corpus or []),
            unknown=unknown,
            host=host,
            port=port,
            token=_token(token, token_file, host, insecure),
            token_file=str(token_file) if token_file is not None and token_file.is_file() else None,  # no pipe
            device=device,
            workers=workers,
            num_threads=threads or max(1, num_threads() // workers),
            batch_wait_us=batch_wait_us,
            encoder=_encoder(encoder, encoder_model, encoder_token_file),
            encoder_model=encoder_model,
            encoder_token=None if encoder_token_file is None else first_line(encoder_token_file),
            flight_port=flight_port,
            allowed_hosts=tuple(allowed_hosts or ()),
            allowed_origins=tuple(allowed_origins or ()),
            load_from=None if load_from is None else str(load_from),
            gzip_bytes=gzip_bytes,
            tls_cert=None if tls_cert is None else str(tls_cert),
            tls_key=None if tls_key is None else str(tls_key),
            verify=verify,
            watch=watch,
            drain=drain,
            grace=grace,
            log=access_log,
            traces=traces,
            texts=_texts(texts or [], _corpora(corpus or []), text_column, text_id_column),
            limits=Limits(
                body_bytes=max_body,
                header_bytes=max_header,
                queries=max_queries,
                queue=max_queue,
                connections=max_connections,
                requests=max_requests,
                memory_bytes=max_memory,
                timeout_ms=timeout_ms,
                idle_seconds=idle_seconds,
                body_seconds=body_seconds,
                write_seconds=write_seconds,
            ),
        )
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s: %(message)s")
        for each in range(0 if flight_port is None else workers):
            bound(host, (flight_port or 0) + each).close()  # sooner and plainer than gRPC says that it is taken
        with bound(host, port) as socket:
            if workers == 1:
                run(settings, [socket])
            elif code := run_workers(settings, [socket]):
                raise typer.Exit(code)


def _corpora(given: list[str]) -> dict[str, str]:
    """Return the folders by name."""
    from ..serving.corpora import NAMES, can_be_named

    found: dict[str, str] = {}
    for each in given:
        name, equals, folder = each.partition("=")
        if not (name and equals and folder):
            raise ValueError(f"serve: corpus must be NAME=FOLDER, got {each!r}")
        if name in found:
            raise ValueError(f"serve: corpus must have a name of its own, got {name!r} twice")
        if not can_be_named(name):
            raise ValueError(f"serve: corpus must have a name {NAMES}, got {name[:200]!r}")
        found[name] = folder
    return found


def _token(token: str | None, file: Path | None, host: str, insecure: bool) -> str | None:
    """Return the text of the tokens; refuse to listen to everybody without one."""
    from ..serving.http.tokens import MOST_BYTES, decoded, parsed

    if file is not None:
        if token is not None:
            raise ValueError("serve: token must be given once, got token and token_file")
        with file.open("rb") as opened:  # a pipe, too
            token = decoded(opened.read(MOST_BYTES))
    if token is not None:
        parsed(token, "token" if file is None else "token_file")
    if token is None and not insecure and not _is_local(host):
        raise ValueError(
            f"serve: host must be of this machine without a token, got {host!r}; give a token file or insecure"
        )
    return token


def _encoder(encoder: str | None, model: str | None, token: Path | None) -> str | None:
    """Return the encoder; refuse what belongs to the URL of one with none."""
    from ..serving.server import is_url

    if not is_url(encoder) and (model is not None or token is not None):
        name = "encoder_model" if model is not None else "encoder_token_file"
        raise ValueError(f"serve: {name} must come with the URL of an encoder, got encoder {encoder!r}")
    if encoder is not None and "://" in encoder and not is_url(encoder):
        raise ValueError(f"serve: encoder must be a model, or an http or https URL, got {encoder!r}")
    return encoder


def _texts(given: list[str], corpora: dict[str, str], column: str, id_column: str | None) -> dict[str, TextFile]:
    """Return the files of texts by the names of their corpora."""
    from ..serving.texts import TextFile

    found: dict[str, TextFile] = {}
    for each in given:
        name, equals, file = each.partition("=")
        if not equals or name not in corpora:
            if len(corpora) != 1:
                raise ValueError(f"serve: texts must be NAME=FILE with the name of a corpus, got {each!r}")
            [name], file = corpora, each
        if name in found:
            raise ValueError(f"serve: texts must be one file or folder a corpus, got two of {name!r}")
        found[name] = TextFile(file, column, id_column)
    return found


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
