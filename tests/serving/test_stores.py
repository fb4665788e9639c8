"""The scripts examples/serve_*.py: real stores search, the service picks, the stores have the documents.

Stores that are not installed are skipped; `make test-serve` installs them. PostgreSQL: the database of DATABASE_URL,
else a cluster of Debian's, made for the test.
"""

import importlib.util
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import postgres
import pytest
import servers

import ragsys_kernels as rk

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NEEDS = {
    "serve_here.py": [],
    "serve_lancedb.py": ["lancedb"],
    "serve_chroma.py": ["chromadb"],
    "serve_qdrant.py": ["qdrant_client"],
    "serve_milvus.py": ["pymilvus", "milvus_lite"],
    "serve_sqlite_vec.py": ["sqlite_vec"],
    "serve_postgres.py": ["psycopg"],
}
PICKS = ["solar panels turn light into power", "a dam turns falling water into power"]

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the tests run outside of the source tree")


def test_every_script_is_run_and_listed():
    listed = (EXAMPLES / "README.md").read_text(), (ROOT / "docs" / "service_stores.md").read_text()
    assert {path.name for path in EXAMPLES.glob("serve_*.py")} == set(NEEDS)
    assert all(f"({name})" in listed[0] for name in NEEDS)
    assert all(f"({'../examples/' + name})" in listed[1] for name in NEEDS if name != "serve_here.py")


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notes") / "notes"
    sys.path.insert(0, str(EXAMPLES))
    try:
        import serve_here
    finally:
        sys.path.remove(str(EXAMPLES))
    serve_here.save(folder)
    with servers.Thread({"notes": str(folder)}) as server:
        yield server.url


@pytest.fixture
def database():
    """The address of a database, in a cluster of this test if there is none."""
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    with postgres.cluster() as options:
        yield f"postgresql:///postgres?{options}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NEEDS)
def test_script(name, service, request):
    for module in NEEDS[name]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
    if name == "serve_sqlite_vec.py" and not hasattr(sqlite3.Connection, "enable_load_extension"):
        pytest.skip("this Python's sqlite3 loads no extensions")
    environment = {"RAGSYS_SERVICE": service, "PYTHONPATH": str(Path(rk.__file__).parents[1])}
    if name == "serve_postgres.py":
        environment["DATABASE_URL"] = request.getfixturevalue("database")
    result = subprocess.run(
        [sys.executable, EXAMPLES / name],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    search, _, picks = result.stdout.partition("MMR:\n")
    found = [line.strip() for line in search.splitlines()[1:]]
    assert len(found) == 3
    assert all(text.startswith("solar panels turn") for text in found)
    assert [line.strip() for line in picks.splitlines()][:2] == PICKS
