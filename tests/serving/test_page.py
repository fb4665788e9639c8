"""The page ``/``: its files are in the package and load nothing from elsewhere. See test_browser.py too."""

import re

import numpy as np
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels.selection import parameters
from ragsys_kernels.serving.routes import page


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).standard_normal((60, 8), dtype=np.float32)


@pytest.fixture(scope="module")
def served(rows):
    """What each path of the page answers without a token, and with HEAD."""

    async def use(client, service):
        answers = {path: await client.get(path) for path in (*page.PATHS, page.RULES)}
        assert (await client.head("/")).status_code == 200
        assert (await client.get("/info")).status_code == 401
        assert [(await client.get(path)).status_code for path in ("/static/", "/static/../page.py")] == [401, 401]
        return answers

    return servers.run({"docs": rk.Corpus(rows)}, use, token="secret")


def test_files_come_with_a_policy_that_lets_nothing_else_in(served):
    for path, answer in served.items():
        assert answer.status_code == 200, path
        assert answer.headers["content-type"] == page.PATHS.get(path, (None, "application/json"))[1]
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_inline(served):
    space = "http://www.w3.org/2000/svg"  # a name, which nothing loads
    texts = {path: answer.text.replace(space, "") for path, answer in served.items()}
    assert not [path for path, text in texts.items() if re.search(r"(?:https?:)?//\w|@import|url\(", text)]
    html = texts["/"]
    loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="([^"]+)"', html)
    assert sorted(loaded) == ["data:,", "static/page.css", "static/page.js"]
    assert not re.search(r"<style|\bstyle=|\bon\w+=|<script(?![^>]*src)", html)
    scripts = [text for path, text in texts.items() if path.endswith(".js")]
    assert len(scripts) == 3
    assert not [
        text for text in scripts if re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
    ]


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


def test_the_page_explains_every_rule_and_what_a_number_or_word_says_of_it(served):
    """Of coverage not ``density``, which needs costs; λ_b is one field for all rules."""
    rules = {each["rule"]: each for each in served[page.RULES].json()}
    assert set(rules) == {"topk", *rk.METHODS}
    assert len({each["words"] for each in rules.values()}) == len(rules)
    for rule in rk.METHODS:
        wanted = {each.name for each in parameters.SCALARS if each.name in parameters.OWN[rule]} - {
            "lambda_b",
            "density",
        }
        options = {each["name"]: each for each in rules[rule]["options"]}
        assert set(options) == wanted
        for name, option in options.items():
            own = parameters.BY_NAME[name]
            assert option["words"]
            assert option["default"] == parameters.DEFAULTS[rule][name]
            assert tuple(option.get("choices", ())) == own.choices
            if not own.choices:
                assert (option["low"], option.get("high", np.inf)) == own.range_of(rule)


def test_words_can_be_read_in_light_and_in_dark(served):
    """WCAG's contrast of text, at least 4.5, and of drawings, 3."""

    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
        return np.dot(linear, (0.2126, 0.7152, 0.0722))

    schemes = re.findall(r":root \{(.*?)\}", served["/static/page.css"].text, re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = {name: luminance(value) + 0.05 for name, value in re.findall(r"--(\w+): (#\w{6})", scheme)}
        for ink, paper, least in (
            *((ink, paper, 4.5) for ink in ("ink", "faint", "act", "bad") for paper in ("paper",)),
            ("ink", "mark", 4.5),
            ("faint", "mark", 4.5),
            ("other", "paper", 3),
            ("third", "paper", 3),
        ):
            light, dark = sorted((colours[ink], colours[paper]), reverse=True)
            assert light / dark >= least, (ink, paper)
