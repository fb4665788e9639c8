"""The page ``/``: its files are in the package, load nothing from elsewhere; a browser shows the picks."""

import re
import shutil
import subprocess
from html import unescape

import numpy as np
import pytest

pytest.importorskip("fastapi")
import servers

import ragsys_kernels as rk
from ragsys_kernels.serving.routes import page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).standard_normal((60, 8), dtype=np.float32)


@pytest.fixture(scope="module")
def served(rows):
    """What each path of the page answers without a token, and with HEAD."""

    async def use(client, service):
        answers = {path: await client.get(path) for path in page.PATHS}
        assert (await client.head("/")).status_code == 200
        assert (await client.get("/info")).status_code == 401
        assert [(await client.get(path)).status_code for path in ("/static/", "/static/../page.py")] == [401, 401]
        return answers

    return servers.run({"docs": rk.Corpus(rows)}, use, token="secret")


def test_files_come_with_a_policy_that_lets_nothing_else_in(served):
    for path, answer in served.items():
        assert answer.status_code == 200, path
        assert answer.headers["content-type"] == page.PATHS[path][1]
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_inline(served):
    texts = {path: answer.text for path, answer in served.items()}
    assert not [path for path, text in texts.items() if re.search(r"(?:https?:)?//\w|@import|url\(", text)]
    html = texts["/"]
    loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="([^"]+)"', html)
    assert sorted(loaded) == ["data:,", "static/page.css", "static/page.js"]
    assert not re.search(r"<style|\bstyle=|\bon\w+=|<script(?![^>]*src)", html)
    assert "innerHTML" not in texts["/static/page.js"]  # ids of a corpus are text


def test_every_field_has_a_label_and_every_element_that_the_script_names_is_there(served):
    html, script = served["/"].text, served["/static/page.js"].text
    ids = set(re.findall(r'\bid="([^"]+)"', html))
    assert set(re.findall(r'element\("([^"]+)"\)', script)) <= ids
    assert set(re.findall(r'(?:for|aria-describedby)="([^"]+)"', html)) <= ids
    unlabelled = re.sub(r"<label.*?</label>", "", html, flags=re.DOTALL)
    assert not re.search(r"<(?:input|select)\b", unlabelled)
    assert 'lang="en"' in html
    assert 'name="viewport"' in html
    assert "prefers-color-scheme: dark" in served["/static/page.css"].text


def shown(url, fragment):
    """What a browser has made of the page: what it says, and the table of each rule."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--dump-dom"]
    html = subprocess.run([*command, f"{url}/#{fragment}"], capture_output=True, text=True, timeout=120).stdout
    said = re.search(r'<p id="said"[^>]*>(.*?)</p>', html).group(1)
    tables = {}
    for title, table in re.findall(r"<section><h2>(.*?)</h2><table>(.*?)</table>", html):
        cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table)]
        tables[title] = [[unescape(re.sub(r"<[^>]+>", "", cell)) for cell in row] for row in cells[1:]]
    return unescape(said), tables


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_shows_what_the_library_picks(rows, tmp_path):
    large = 2**62 + np.arange(60)  # more digits than a number of JavaScript has
    corpora = {
        "numbers": rk.Corpus(rows, ids=large),
        "words": rk.Corpus(rows, ids=[f"<b>&{i}" for i in range(60)]),
    }
    for name, corpus in corpora.items():
        corpus.save(tmp_path / name)
    folders = [word for name in corpora for word in ("--corpus", f"{name}={tmp_path / name}")]
    with servers.Process(*folders) as server:
        for name, query in (("numbers", str(large[7])), ("words", "%3Cb%3E%267")):
            asked = f"corpus={name}&query={query}&k=4&pool=30&lambda=0.4"
            said, tables = shown(server.url, asked)
            assert said.startswith("Out of 60 items")
            rules = {"top-k": {"lambda_d": 1.0}, "MMR, λ = 0.40": {"lambda_d": 0.4}, "VRSD": {"method": "vrsd"}}
            assert list(tables) == list(rules)
            for title, rule in rules.items():
                picks = corpora[name].select(rows[7:8], 4, pool=30, exclude=np.array([[7]]), **rule)
                assert [row[1] for row in tables[title]] == [str(each) for each in corpora[name].ids[picks.indices[0]]]
                assert [row[2] for row in tables[title]] == [f"{value:.3f}" for value in picks.relevance[0]]
                chosen = rows[picks.indices[0]] / np.linalg.norm(rows[picks.indices[0]], axis=1, keepdims=True)
                alike = np.tril(chosen @ chosen.T, -1) + np.triu(np.full((4, 4), -9))
                assert [float(row[3]) for row in tables[title][1:]] == pytest.approx(alike.max(axis=1)[1:], abs=6e-4)
        said, tables = shown(server.url, "corpus=words&query=unknown")
        assert "unknown" in said
        assert not tables
