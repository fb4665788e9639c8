"""Files at HTTP servers: some send parts of them; of others the error says so, with the URL."""

import http.server
import re
import shutil
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_arrays import vector_lists

from ragsys_kernels import offline

pytest.importorskip("aiohttp")
pytest.importorskip("fsspec")
ROWS = np.random.default_rng(0).standard_normal((300, 8), dtype=np.float32)


@pytest.fixture(params=["parts", "whole", "whole, of no size"])
def server(request, tmp_path):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            file = tmp_path / self.path[1:]
            if not file.is_file():
                self.send_error(404)
                return
            content, part = file.read_bytes(), re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
            self.send_response(206 if part and request.param == "parts" else 200)
            if part and request.param == "parts":
                first, last = int(part[1]), min(int(part[2] or len(content)), len(content) - 1)
                self.send_header("content-range", f"bytes {first}-{last}/{len(content)}")
                content = content[first : last + 1]
            if request.param != "whole, of no size":
                self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815 (the name is of the standard library)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield request.param, f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["rows.npy", "rows.parquet"])
def test_what_the_server_lacks_is_said(server, tmp_path, name, monkeypatch):
    sends, url = server
    np.save(tmp_path / "rows.npy", ROWS)
    pq.write_table(pa.table({"vector": vector_lists(ROWS)}), tmp_path / "rows.parquet")
    # As of a file larger than what is read ahead.
    monkeypatch.setattr("ragsys_kernels.offline.sources._place._BUFFER", 1000)
    local, given = tmp_path / name, f"{url}/{name}"
    shutil.copy(local, tmp_path / f"queries{local.suffix}")
    place = rf"{url}/\w+{local.suffix}$"
    parts = rf"must be at a server that sends parts of files \(HTTP Range, status 206\), got one .* {place}"
    sizes = rf"must be at a server that tells the sizes of files, got none for {place}"
    said = {"whole": parts, "whole, of no size": f"({parts}|{sizes})"}
    calls = {
        "subset: corpus": lambda source, out: offline.subset(source, out.with_suffix(".parquet"), k=5),
        "dedupe: corpus": lambda source, out: offline.dedupe(source, out.with_suffix(".parquet"), threshold=0.9),
        "build_corpus: corpus": lambda source, out: offline.build_corpus(source, out),
        "select: corpus": lambda source, out: offline.select(corpus=source, queries=local, out=out, k=5),
        "select: queries": lambda source, out: offline.select(corpus=local, queries=source, out=out, k=5),
    }
    for number, (op, call) in enumerate(calls.items()):
        out = tmp_path / str(number)
        if sends == "parts":
            call(given, out)
        else:
            with pytest.raises(OSError, match=f"^{op} {said[sends]}"):
                call(given if "corpus" in op else f"{url}/queries{local.suffix}", out)
            assert not out.exists()
