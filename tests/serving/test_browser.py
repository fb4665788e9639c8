"""The page in a browser: the picks of the library, texts, what one rule has and another has not, a plot that moves."""

import itertools
import json
import shutil

import numpy as np
import pytest

pytest.importorskip("playwright")
import pyarrow as pa
import pyarrow.parquet as pq
import servers
from playwright.sync_api import expect, sync_playwright

import ragsys_kernels as rk
from ragsys_kernels.serving import TextFile

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

N = 60
ROWS = np.random.default_rng(0).standard_normal((N, 8), dtype=np.float32)
LARGE = 2**62 + np.arange(N)  # more digits than a number of JavaScript has
WORDS = [f"<img src=x onerror=alert({i})> & text {i}\n" + "long " * (100 if i % 2 else 3) + "end" for i in range(N)]
CORPORA = {
    "numbers": rk.Corpus(ROWS, ids=LARGE),
    "words": rk.Corpus(ROWS, ids=[f"<b>&{i}" for i in range(N)], bias=np.linspace(-1, 0, N, dtype=np.float32)),
    "plain": rk.Corpus(ROWS),
}
RULES = {"topk": {"lambda_d": 1.0}, "mmr": {"lambda_d": 0.4}, "vrsd": {"method": "vrsd"}}
NAMES = {"topk": "top-k", "mmr": "MMR", "vrsd": "VRSD"}
# Options of the rules, as somebody sets them.
ALL = {
    **RULES,
    "msd": {"lambda_d": 0.6},
    "dpp": {"lambda_d": 0.3, "scale": 2.0},
    "ssd": {"gamma": 0.5, "window": 1},
    "sift": {"noise": 0.1, "min_gain": 0.2},
    "coverage": {"lambda_d": 0.2, "kind": "cover", "gamma": 0.25},
    "gist": {"lambda_d": 0.5, "eps": 0.2},
}


class Encoder:
    """A text is the vector of the row that it names."""

    name = "tiny"

    async def encode(self, text, dims, deadline, op):
        return ROWS[int(text.split()[-1])].tolist()

    async def close(self):
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder, texts = tmp_path_factory.mktemp("texts"), {}
    for name, ids in (("numbers", LARGE), ("words", [f"<b>&{i}" for i in range(N)])):
        table = pa.table({"id": list(ids), "text": WORDS}).take(np.random.default_rng(1).permutation(N))
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=7)
        texts[name] = TextFile(str(folder / f"{name}.parquet"))
    with servers.Thread(CORPORA, texts=texts) as server:
        server.service.encoder = Encoder()
        yield server


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Page:
    """A page that has shown its picks, what it asked the server, and what went wrong in it."""

    def __init__(self, browser, server, fragment):
        self.page = browser.new_page()
        self.asked, self.wrong = [], []
        self.page.on("request", lambda request: self.asked.append((request.url, request.post_data)))
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(dialog.message))
        self.page.goto(f"{server.url}/#{fragment}")
        expect(self.page.locator("#said")).not_to_be_empty()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.page.close()
        assert self.wrong == []

    def settled(self):
        """Wait until what was typed has been answered."""
        self.page.wait_for_load_state("networkidle")
        return self

    def tables(self):
        """The rows of each rule: cells, with the id's note by itself, and the text below."""
        script = """[...document.querySelectorAll('section')].map((section) => [
            section.dataset.rule,
            section.querySelector('h2').textContent,
            [...section.querySelectorAll('tbody tr[data-id]')].map((row) => ({
                id: row.querySelector('th span').textContent,
                note: row.querySelector('small').textContent,
                near: row.querySelectorAll('small')[1].textContent,
                cells: [...row.querySelectorAll('td')].map((cell) => cell.textContent),
                text: row.nextElementSibling?.matches('.text') ? row.nextElementSibling.textContent : null,
            })),
        ])"""
        return {rule: (title, rows) for rule, title, rows in self.page.evaluate(script)}


def picks_of(name, rule, **options):
    return CORPORA[name].select(ROWS[7:8], 4, pool=30, **{**RULES[rule], **options})


@pytest.mark.parametrize("name", ["numbers", "words", "plain"])
def test_a_browser_shows_what_the_library_picks(server, browser, name):
    query = {"numbers": str(LARGE[7]), "words": "%3Cb%3E%267", "plain": "7"}[name]
    with Page(browser, server, f"corpus={name}&by=id&query={query}&k=4&pool=30&lambda=0.4") as page:
        tables = page.settled().tables()
        assert page.page.inner_text("#said").startswith("Out of 60 items")
    assert [title for title, _ in tables.values()] == ["top-k", "MMR, λ = 0.40", "VRSD"]
    ids = {rule: [row["id"] for row in rows] for rule, (_, rows) in tables.items()}
    for rule, (_, rows) in tables.items():
        options = {"lambda_b": 1.0} if rule == "topk" else {}
        picks = picks_of(name, rule, exclude=np.array([[7]]), **options)
        chosen = picks.indices[0].tolist()
        assert ids[rule] == [str(each) for each in CORPORA[name].ids[chosen]]
        assert [row["cells"][1] for row in rows] == [f"{value:.3f}" for value in picks.relevance[0]]
        unit = ROWS[chosen] / np.linalg.norm(ROWS[chosen], axis=1, keepdims=True)
        alike = np.tril(unit @ unit.T, -1) + np.triu(np.full((4, 4), -9))
        assert [float(row["cells"][2]) for row in rows[1:]] == pytest.approx(alike.max(axis=1)[1:], abs=6e-4)
        near = ["", *(f"like the {('1st', '2nd', '3rd')[i]}" for i in alike.argmax(axis=1)[1:])]
        assert [row["near"] for row in rows] == near
        assert [float(row["cells"][3]) for row in rows] == pytest.approx(picks.scores[0], abs=6e-4)
        for place, row in zip(chosen, rows, strict=True):
            without = [NAMES[other] for other in ids if row["id"] not in ids[other]]
            assert row["note"] == ("only here" if len(without) == 2 else f"not in {without[0]}" if without else "")
            if name == "plain":
                assert row["text"] is None
            elif len(WORDS[place]) > 280:
                assert row["text"] == f"{WORDS[place][:280]}… all {len(WORDS[place])} characters"
            else:
                assert row["text"] == WORDS[place]


def test_the_slider_and_the_plot_need_no_request(server, browser):
    other = {"exclude": np.array([[7]])}
    with Page(browser, server, "corpus=plain&by=id&query=7&k=4&pool=30&lambda=0.4") as page:
        asked = len(page.settled().asked)
        for weight in (0.15, 0.62, 1.0):
            page.page.locator("#lambda").fill(str(weight))
            title, rows = page.tables()["mmr"]
            expected = picks_of("plain", "mmr", lambda_d=weight, **other)
            assert title == f"MMR, λ = {weight:.2f}"
            assert [row["id"] for row in rows] == [str(each) for each in expected.indices[0]]
            assert [float(row["cells"][3]) for row in rows] == pytest.approx(expected.scores[0], abs=6e-4)
        pool = CORPORA["plain"].search(ROWS[7:8], 30, **other).indices
        path = rk.mmr_path(ROWS[7:8], CORPORA["plain"], 4, candidates=pool)
        steps, marker = page.page.locator("circle.step"), page.page.locator("#drawing circle.now")
        assert steps.count() == len(path.low)
        box = steps.first.bounding_box()
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.page.mouse.click(*middle)
        now = marker.bounding_box()
        assert (now["x"] + now["width"] / 2, now["y"] + now["height"] / 2) == pytest.approx(middle, abs=0.1)
        assert [row["id"] for row in page.tables()["mmr"][1]] == [str(each) for each in path.indices[0]]
        assert float(page.page.input_value("#lambda")) == pytest.approx((path.low[0] + path.high[0]) / 2, abs=0.006)
        assert f"selection 1 of {len(path.low)}, from λ = 0.000" in page.page.inner_text("#plot-legend")
        assert len(page.asked) == asked


def test_a_pool_that_is_too_large_for_a_path_is_asked_for_by_weight(server, browser):
    with Page(browser, server, "corpus=plain&by=id&query=7&k=4&pool=&lambda=0.4") as page:
        page.settled()
        page.page.check("#itself")
        expect(page.page.locator("[data-rule=topk] th span").first).to_have_text("7")
        assert not page.page.is_visible("#plot")

        def shows(weight):
            picks = CORPORA["plain"].select(ROWS[7:8], 4, pool=None, lambda_d=weight)
            return [row["id"] for row in page.tables()["mmr"][1]] == list(map(str, picks.indices[0]))

        assert shows(0.4)
        page.page.locator("#lambda").fill("0.1")
        expect(page.page.locator("[data-rule=mmr] h2")).to_have_text("MMR, λ = 0.10")
        assert shows(0.1)


def test_every_rule_has_its_picks_by_its_options_and_one_that_fails_hides_no_other(server, browser):
    with Page(browser, server, "corpus=plain&by=id&query=7&k=4&pool=30&rules=topk") as page:
        for rule in itertools.islice(ALL, 3, None):
            page.page.check(f"[value={rule}]")
            for name, value in ALL[rule].items():
                place = page.page.locator(f"[name='{rule}.{name}']")
                place.select_option(value) if name == "kind" else place.fill(str(value))
            row = page.page.locator(f"[data-rule={rule}] tr[data-id]").first
            expect(row).to_be_visible()
            found = CORPORA["plain"].select(
                ROWS[7:8], 4, pool=30, method=rule, exclude=np.array([[7]]), nearest=True, **ALL[rule]
            )
            chosen = [str(each) for each in found.indices[0] if each >= 0]
            ids = page.page.locator(f"[data-rule={rule}] tr[data-id] th span")
            expect(ids).to_have_text(chosen)
            shown = page.settled().tables()[rule][1]
            assert [float(each["cells"][3]) for each in shown] == pytest.approx(
                found.scores[0][: len(chosen)], abs=6e-4
            )
            near = [f"like the {('1st', '2nd', '3rd')[i]}" if i >= 0 else "" for i in found.nearest[0][: len(chosen)]]
            assert [each["near"] for each in shown] == near
            if len(chosen) < 4:
                assert f"{len(chosen)} of 4 picks" in page.page.inner_text(f"[data-rule={rule}] caption")
        reloaded = page.tables()
        page.page.reload()
        expect(page.page.locator("section")).to_have_count(len(reloaded))
        assert page.settled().tables() == reloaded  # the address has it all
        page.page.fill("[name='ssd.window']", "0")
        expect(page.page.locator("#said")).to_have_text("SSD: window must be at least 1")
        page.page.fill("[name='ssd.window']", "")
        page.page.fill("[name='sift.noise']", "0")  # which no attribute of a field can refuse
        error = page.page.locator("[data-rule=sift] .bad")
        expect(error).to_contain_text("noise must be above 0")
        assert len(page.tables()["gist"][1]) > 1
        page.page.fill("#k", "0")
        expect(page.page.locator("#said")).to_have_text("k must be a whole number from 1 to 1000")


def test_a_server_without_corpora_says_so(browser):
    with servers.Thread({}) as empty, Page(browser, empty, "") as page:
        assert page.page.inner_text("#said").startswith("This server has no corpus")


def test_a_typed_text_is_the_query_and_its_picks_can_be_read_whole(server, browser):
    with Page(browser, server, "corpus=numbers&by=text&k=4&pool=30") as page:
        assert page.page.inner_text("#said") == "Type a text: it is the query."
        page.page.fill("#query", 'say "it", row 7')
        page.page.wait_for_selector("section")
        rows = page.settled().tables()["topk"][1]
        expected = picks_of("numbers", "topk").indices[0].tolist()
        assert [row["id"] for row in rows] == [str(each) for each in LARGE[expected]]
        place = next(each for each in expected if each % 2)
        row = page.page.locator(f"[data-rule=topk] tr[data-id='{LARGE[place]}'] + tr")
        row.locator("button").click()
        row.locator("button").wait_for(state="detached")
        assert row.text_content().removesuffix("… ") == WORDS[place]
        assert page.page.locator("img").count() == 0
        encoded = [json.loads(body)["text"] for url, body in page.asked if url.endswith("/v1/encode")]
        assert encoded == ['say "it", row 7']
        page.page.uncheck("[value=vrsd]")
        expect(page.page.locator("section")).to_have_count(2)
        assert list(page.tables()) == ["topk", "mmr"]
        page.page.fill("#k", "3")
        expect(page.page.locator("[data-rule=topk] tr[data-id]")).to_have_count(3)
        assert len([url for url, _ in page.asked if url.endswith("/v1/encode")]) == 1
        page.page.select_option("#by", "id")
        page.page.fill("#query", "77")
        page.page.wait_for_selector("#said.bad")
        assert "must be ids of the corpus, got 77" in page.page.inner_text("#said")
        page.page.fill("#query", "07")
        expect(page.page.locator("#said")).to_have_text("the ids of this corpus are integers")
        page.wrong = [each for each in page.wrong if "422" not in each]  # Chromium logs answers that are errors


def test_nothing_is_wider_than_the_screen(server, browser):
    rules = ".".join(ALL)
    with Page(browser, server, f"corpus=words&by=id&query=%3Cb%3E%267&k=5&pool=30&rules={rules}") as page:
        page.settled()
        for width, scheme in itertools.product((1280, 400), ("light", "dark")):
            page.page.set_viewport_size({"width": width, "height": 800})
            page.page.emulate_media(color_scheme=scheme)
            assert page.page.evaluate("document.documentElement.scrollWidth") == width
            box = {name: page.page.locator(name).bounding_box() for name in ("#asked", "#plot", "#picks")}
            for each in box.values():
                assert each["x"] >= 0
                assert each["x"] + each["width"] <= width
            if width == 1280:  # the plot beside the form, the rules side by side
                assert box["#plot"]["x"] > box["#asked"]["x"] + box["#asked"]["width"]
            places = [page.page.locator("section").nth(i).bounding_box() for i in range(3)]
            start, size = (
                ("x", "width") if width == 1280 else ("y", "height")
            )  # else one below the other: none is hidden
            assert all(first[start] + first[size] <= second[start] for first, second in itertools.pairwise(places))
            assert all(each["x"] >= 0 and each["x"] + each["width"] <= width for each in places)
            paper = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 26)")
