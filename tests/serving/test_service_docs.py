"""The pages of the service: their Python and their ``curl`` run against a server, and what they name is there."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import servers
from pages import blocks

import ragsys_kernels as rk
from ragsys_kernels.serving import make_service
from ragsys_kernels.serving.queries.rules import OF_URL
from ragsys_kernels.serving.routes import arrow_answers, open_inference, rerank, select_arrow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("service.md", "service_stores.md")
HERE = "http://127.0.0.1:8080"

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the tests run outside of the source tree")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_what_is_shown_runs_from_vectors_to_the_last_answer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, answered, options = {}, 0, {}
    with contextlib.ExitStack() as stack:
        for page in PAGES:
            for number, (language, code, shown) in enumerate(blocks(DOCS / page)):
                name = f"{page}, block {number}"
                for asked, url in options.items():
                    code = code.replace(asked, url)
                if language == "python":
                    printed = io.StringIO()
                    with contextlib.redirect_stdout(printed):
                        exec(compile(code, name, "exec"), found)
                    assert printed.getvalue().split() == shown.split(), name
                elif code.startswith("ragsys-kernels serve"):
                    server = stack.enter_context(servers.Process(*code.split()[2:]))
                    options[HERE] = server.url
                elif "curl " in code:
                    answered += check(code, name)
        assert answered == 13


def check(code, name):
    """Run a block's calls; each answers every query that it asks. Return how many calls there are."""
    calls = code.count("curl -s ")
    # The page shows what one types; here a refusal fails, and answers stand in lines of their own.
    script = code.replace("curl -s ", "curl -sS --fail-with-body -w '\\n' ")
    result = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, env=dict(os.environ))
    assert result.returncode == 0, f"{name}: {result.stdout}{result.stderr}"
    for line in filter(None, result.stdout.splitlines()):
        answer = json.loads(line)
        results = next(iter(answer.values())) if isinstance(answer, dict) else answer
        assert results, name
        assert not [each for each in results if "error" in each], name
    return calls


def test_the_page_of_stores_has_the_options_of_rerank():
    text = (DOCS / "service_stores.md").read_text(encoding="utf-8")
    options = text[text.index("**Options**") : text.index("What else [a selection")]
    assert sorted(re.findall(r"`(\w+)`", options)) == sorted({*rerank._RULES, *rerank._FIELDS} - {"query_id"})


def test_routes_metrics_and_options_that_the_page_names_exist(command, tmp_path):
    text = (DOCS / "service.md").read_text(encoding="utf-8")
    service = make_service({"docs": rk.Corpus(np.eye(3, dtype=np.float32))})
    paths = set(service.app.openapi()["paths"]) | {route.path for route in service.app.routes}
    named = set(re.findall(r"[`/](/?(?:v1|v2|models|health|rerank|info|metrics|openapi|docs)[\w./{}-]*)`", text))
    assert {f"/{path.lstrip('/')}".replace("/corpora/docs/", "/corpora/{name}/") for path in named} <= paths
    in_arrow = text[text.index("**In Arrow**") : text.index("**Pages.**")]
    columns = {*select_arrow._COLUMNS, *arrow_answers.ANSWER, "code", "skipped", "unmet"}
    assert set(re.findall(r"`(\w+)`", in_arrow)) == columns | {*OF_URL} | {"cursor", "cost"}
    as_tensors = text[text.index("Input tensors") : text.index("Pad shorter lists")]
    assert set(re.findall(r"`(\w+)`", as_tensors)) == set(open_inference._INPUTS)
    metrics = service.metrics.text().decode()
    for metric in re.findall(r"`(ragsys_\w+?)(?:_total)?`", text):
        assert f"# TYPE {metric}" in metrics or metric == "ragsys_kernels", metric
    shown = command(tmp_path, "serve", "--help").stdout
    told = set(re.findall(r"(?<!\S)/[a-z][\w./]*(?<!\.)", shown[: shown.index("SIGHUP")]))
    assert {"/v1/select", "/health", "/openapi.json"} <= told <= paths
    options = set(re.findall(r"`?(--[a-z][a-z-]+)", text))
    assert len(options) > 6
    assert {option for option in options if option not in shown} == set()
