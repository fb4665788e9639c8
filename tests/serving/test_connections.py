"""Where uvicorn lacks what the short way builds on, the plain way of ASGI serves; `/info` says which."""

import argparse
import asyncio
import os
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import servers
from uvicorn.protocols.http import httptools_impl

import ragsys_kernels as rk
from ragsys_kernels.serving import connections, make_service
from ragsys_kernels.serving.listening import bound
from ragsys_kernels.serving.server import Server, Settings

ROOT = Path(__file__).parents[2]
BODY = {"k": 2, "queries": [{"query_id": 3}, {"query_id": 99}]}


def corpus():
    return rk.Corpus(np.random.default_rng(1).standard_normal((20, 8), dtype=np.float32))


def asked(url):
    answers = [servers.http.post(f"{url}/v1/select", json=BODY), servers.http.get(f"{url}/info")]
    return answers[0].json(), answers[1].json()["connections"]


def served(**settings):
    """What a server in this process says of a request and of itself."""

    async def main():
        service = make_service({"docs": corpus()})
        server = Server(service, Settings(corpora={}, drain=0, **settings), worker=True)
        with bound("127.0.0.1", 0) as socket:
            socket.listen()
            running = asyncio.ensure_future(server.serve([socket]))
            while service.status != "ready":
                await asyncio.sleep(0.01)
            answer = await asyncio.to_thread(asked, f"http://127.0.0.1:{socket.getsockname()[1]}")
            server.stop()
            await running
            return answer

    return asyncio.run(main())


PARTS = [
    (httptools_impl.HttpToolsProtocol, "_start_asgi_task"),
    (httptools_impl.FlowControl, "resume_reading"),
    *((httptools_impl, name) for name in ("STATUS_LINE", "RequestResponseCycle")),
]


@pytest.mark.parametrize(("owner", "name"), PARTS, ids=lambda x: x if isinstance(x, str) else "")
def test_each_part_that_is_not_there_is_named(monkeypatch, owner, name):
    monkeypatch.delattr(owner, name)
    monkeypatch.setattr(connections, "_names_in", lambda kind: set(dir(httptools_impl.HttpToolsProtocol)))
    way, told = connections.chosen()
    assert way == "auto"
    assert told.startswith("asgi: uvicorn ")
    assert name in told


def test_both_ways_give_the_same_answers(monkeypatch):
    short = served()
    assert short[1] == "short"
    monkeypatch.setitem(connections._PARTS, "FlowControl", ("a_part_of_tomorrow",))
    plain = served()
    assert plain[1].startswith("asgi: uvicorn ")
    assert plain[1].endswith(" has no FlowControl.a_part_of_tomorrow")
    assert plain[0] == short[0]
    ids = [result.get("ids") for result in short[0]["results"]]
    assert ids[0] == corpus().select(corpus().vectors(np.array([3])).astype("f4"), 2).indices[0].tolist()


def test_without_httptools_the_plain_way_serves(run_python):
    """In a process of its own: what is imported stays."""
    imports = "import sys; sys.modules['httptools'] = None; from ragsys_kernels.serving import connections"
    said = run_python(f"{imports}; print(connections.chosen())").stdout
    assert said.startswith("('auto', 'asgi: uvicorn ")
    assert "has no httptools" in said


@pytest.mark.skipif(
    "RAGSYS_KERNELS_TEST_UVICORN" not in os.environ, reason="names folders of other versions of uvicorn"
)
def test_other_versions_of_uvicorn(tmp_path):
    """RAGSYS_KERNELS_TEST_UVICORN=FOLDER:FOLDER, each by `pip install --no-deps --target FOLDER uvicorn==VERSION`."""
    corpus().save(tmp_path / "docs")
    expected = servers.run({"docs": corpus()}, lambda client, _: client.post("/v1/select", json=BODY)).json()
    root = os.path.dirname(os.path.dirname(rk.__file__))
    for folder in os.environ["RAGSYS_KERNELS_TEST_UVICORN"].split(":"):
        path = os.pathsep.join([folder, root])
        with servers.Process("--corpus", f"docs={tmp_path / 'docs'}", PYTHONPATH=path) as server:
            answer, told = asked(server.url)
            assert answer == expected
            print(folder, told)
            assert server.stop()[0] == 0


def test_traces_go_by_the_instrumentation_of_asgi(monkeypatch):
    pytest.importorskip("opentelemetry.instrumentation.asgi")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    monkeypatch.setenv("OTEL_PYTHON_ASGI_EXCLUDED_URLS", "info")
    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    expected = served()[0]
    answer, told = served(traces=True)
    assert (answer, told) == (expected, "asgi: traces")
    own = "opentelemetry.instrumentation.asgi"  # FastAPI may have spans of its own
    made = [span for span in exporter.get_finished_spans() if span.instrumentation_scope.name == own]
    spans = [span for span in made if span.kind is trace.SpanKind.SERVER]
    assert [span.name for span in spans] == ["POST /v1/select"]
    assert {200} == {span.attributes.get("http.status_code", 200) for span in spans}


def test_traces_without_the_instrumentation_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.asgi", None)
    with pytest.raises(
        ModuleNotFoundError, match="serve: traces needs opentelemetry-instrumentation-asgi: pip install"
    ):
        connections.traced(None)


@pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="the tests run outside of the source tree")
def test_the_command_of_opentelemetry_leaves_traces_to_the_server():
    """Its parser, in small: it takes what abbreviates its options for them, wherever that stands."""
    group = "opentelemetry_environment_variables"
    tomllib = pytest.importorskip("tomllib")
    [module] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][group].values()
    own = [name.removeprefix("OTEL_").lower() for name in dir(import_module(module)) if name.startswith("OTEL_")]
    parser = argparse.ArgumentParser()
    for name in ("traces_exporter", "traces_sampler", *own):
        parser.add_argument(f"--{name}")
    parser.add_argument("command")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    arguments = ["serve", "--traces", "--port", "1"]
    found = parser.parse_args(["ragsys-kernels", *arguments])
    assert (found.command, found.rest, found.traces) == ("ragsys-kernels", arguments, None)
