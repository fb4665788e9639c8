"""The In-Context RALM evaluation with a tiny model: its numbers by brute force, its report, resumption, its command."""

import functools
import re

import lm_models
import numpy as np
import pytest
import ralm_data
from backends import needs
from evaluations import check_files, invoke, model, settings_of, stopping, values_of
from tiny_encoder import TinyEncoder

from benchmarks import papers
from benchmarks.papers.ralm import report as ralm_report
from ragsys_kernels._base import env as _env
from ragsys_kernels.icl import BM25Retriever, PredictiveRanker
from ragsys_kernels.icl.datasets import ralm_passages, wikitext

pytestmark = needs("bm25s", "matplotlib")

SIZES = {
    "windows": 5, "window": 64, "target": 8, "stride": 4, "query": 24, "dense_query": 30, "document": 12,
    "candidates": 3, "past": 4, "strides": (2, 4, 8), "queries": (12, 24), "passage": 10,
}  # fmt: skip
LABELS = [
    "no document", "no document, prefix as short", "any passage", "BM25, random", "BM25, first",
    "BM25, first, in front", "BM25, reranked", "BM25, reranked by HuggingFaceModel", "BM25, predictive", "BM25, oracle",
    "dense, first", "dense (other), first", "BM25, first two", "BM25, two by MMR λ=0.5", "own article",
]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return ralm_data.write(tmp_path_factory.mktemp("ralm") / "data")


@pytest.fixture
def evaluated(data, tmp_path):
    def run(**options):
        given = {"out": tmp_path / "out", "cache": tmp_path / "cache", "data": data, "model": model(), "samples": 100}
        return papers.ralm(**{**given, "encoder": TinyEncoder(), "sizes": SIZES, **options})

    return run


def brute(data):
    """Every method by its definition, one run of full logits for each window, piece and document."""
    tokenizer, encoder = lm_models.tokenizer(), TinyEncoder()
    test = wikitext("test", data)
    documents = [passage.document for passage in ralm_passages(test, data, words=10).passages]
    ids = tokenizer(test.text)["input_ids"]
    bm25, vectors = BM25Retriever(documents), encoder.encode(documents).astype(np.float64)
    every = list(range(64, len(ids) - 8 + 1, 8))
    begins = [every[int(i)] for i in np.linspace(0, len(every) - 1, 5)]
    drawn = iter(np.random.default_rng(0).integers(len(documents), size=10).tolist())

    def tokens_of(chosen):
        return [t for i in chosen for t in tokenizer(documents[i])["input_ids"][: 12 // len(chosen)]]

    def logp(begin, chosen, a, b, cut=0):
        """Summed log p of tokens a to b of the text, in the window that predicts begin to begin + 8."""
        return _logp(begin, tuple(chosen), a, b, cut)

    @functools.cache
    def _logp(begin, chosen, a, b, cut):
        start, document = begin + 8 - 64, tokens_of(chosen)
        fed = document + ids[start + len(document) + cut : b]
        return float(lm_models.logprobs(fed)[-(b - a) :].sum())

    def before(place, length):
        return tokenizer.decode(ids[place - length : place])

    def nearest(place, length, n):
        row = bm25.search([before(place, length)], n).ids[0]
        return [int(i) for i in row if i >= 0]

    def total(choose, stride=4):
        """Negative log-probability of each target; choose(begin, place) names documents, or gives the sum itself."""
        sums = []
        for begin in begins:
            parts = [(place, choose(begin, place)) for place in range(begin, begin + 8, stride)]
            sums.append(
                -sum(c if isinstance(c, float) else logp(begin, c, place, place + stride) for place, c in parts)
            )
        return np.array(sums)

    def ranked(n, oracle):
        def choose(begin, place):
            a, b = (place, place + 4) if oracle else (place - 4, place)
            found = nearest(place, 24, n)
            return [max(found, key=lambda i: logp(begin, [i], a, b))] if found else []

        return choose

    def random(n):
        return lambda begin, place: float(
            np.mean([logp(begin, c, place, place + 4) for c in [[i] for i in nearest(place, 24, n)] or [[]]])
        )

    def ranked_by_another(begin, place):
        """By the second model, which reads texts: log p of the last 4 tokens' text."""
        start, scores = begin + 8 - 64, []
        for i in nearest(place, 24, 3):
            document = tokens_of([i])
            prefix = tokenizer(tokenizer.decode(document + ids[start + len(document) : place - 4]))["input_ids"]
            past = tokenizer(before(place, 4))["input_ids"]
            found = lm_models.logprobs(prefix + past, "gpt2")[-len(past) :]
            scores.append((float(found.sum()), -len(scores), i))
        return [max(scores)[2]] if scores else []

    @functools.cache
    def learnt(at):
        """The ranker for window `at`, trained on the others."""
        examples = []
        for begin in begins[:at] + begins[at + 1 :]:
            for place in (begin, begin + 4):
                found = nearest(place, 24, 3)
                worth = [logp(begin, [i], place, place + 4) for i in found]
                examples.append((before(place, 24), [documents[i] for i in found], worth))
        return PredictiveRanker(encoder).fit(*zip(*examples, strict=True))

    def predictive(begin, place):
        found, ranker = nearest(place, 24, 3), learnt(begins.index(begin))
        (scores,) = ranker.score([before(place, 24)], [[documents[i] for i in found]])
        return [found[int(np.argmax(scores))]] if found else []

    def query_vector(place, encoder=encoder, length=24):
        return encoder.encode([before(place, length)])[0].astype(np.float64)

    def dense(begin, place):
        return [int(np.argmax(vectors @ query_vector(place, length=30)))]

    another = TinyEncoder(16, "other")
    others = another.encode(documents).astype(np.float64)

    def other_dense(begin, place):
        return [int(np.argmax(others @ query_vector(place, another, 30)))]

    def diverse(begin, place):
        found, query = nearest(place, 24, 3), query_vector(place, length=30)
        first = max(found, key=lambda i: vectors[i] @ query)
        rest = [i for i in found if i != first]
        return [first, *[max(rest, key=lambda i: vectors[i] @ query - vectors[i] @ vectors[first])][: len(rest)]]

    def second_half(by_first_half):
        """What the last 2 tokens of each piece of 4 cost, after the document that is best for its first 2."""
        sums = []
        for begin in begins:
            places = (begin, begin + 4)
            best = [nearest(place, 24, 3 if by_first_half else 1) for place in places]
            best = [
                max(([i] for i in found), key=lambda c: logp(begin, c, place, place + 2), default=[])
                for place, found in zip(places, best, strict=True)
            ]
            sums.append(-sum(logp(begin, c, place + 2, place + 4) for place, c in zip(places, best, strict=True)))
        return np.array(sums)

    def first(begin, place, length=24):
        return nearest(place, length, 1)

    def short(begin, place):
        return logp(begin, [], place, place + 4, cut=len(tokens_of(first(begin, place))))

    def in_front(begin, place):
        """The document before the whole window: none of its tokens is left out."""
        document = tokens_of(first(begin, place))
        fed = document + ids[begin + 8 - 64 : place + 4]
        return float(lm_models.logprobs(fed)[-4:].sum())

    borders = []
    for article in test.articles:
        borders.append(len(tokenizer(test.text[: test.text.index(article.text)])["input_ids"]))
    borders.append(len(ids))

    def own(begin, place):
        """A piece of the article of 12 tokens that has nothing of the window."""
        at = max(i for i in range(len(test.articles)) if borders[i] <= begin)
        window = set(range(begin + 8 - 64, begin + 8))
        starts = range(borders[at], borders[at + 1] - 11, 12)
        pieces = [tokenizer.decode(ids[i : i + 12]) for i in starts if not window & set(range(i, i + 12))]
        best = BM25Retriever(pieces).search([before(place, 24)], 1).ids[0, 0]
        if best < 0:
            return []
        documents.append(pieces[best])
        return [len(documents) - 1]

    return {
        "no document": total(lambda begin, place: []),
        "no document, prefix as short": total(short),
        "any passage": total(lambda begin, place: [next(drawn)]),
        "BM25, random": total(random(3)),
        "BM25, first": total(first),
        "BM25, first, in front": total(in_front),
        "BM25, reranked by HuggingFaceModel": total(ranked_by_another),
        "BM25, predictive": total(predictive),
        "dense (other), first": total(other_dense),
        "BM25, reranked": total(ranked(3, False)),
        "BM25, oracle": total(ranked(3, True)),
        "dense, first": total(dense),
        "BM25, first two": total(lambda begin, place: nearest(place, 24, 2)),
        "BM25, two by MMR λ=0.5": total(diverse),
        "own article": total(own),
        "strides": {stride: total(first, stride) for stride in (2, 4, 8)},
        "queries": {n: total(lambda begin, place, n=n: first(begin, place, n)) for n in (12, 24)},
        "ranked": {n: total(ranked(n, False)) for n in (1, 2, 3)},
        "oracle": {n: total(ranked(n, True)) for n in (1, 2, 3)},
        "halves": (second_half(False), second_half(True), np.full(5, 4)),
        "words": [tokenizer.decode(ids[begin : begin + 8]).count(" ") for begin in begins],
    }


def test_values_are_the_definitions(evaluated, data):
    summary = evaluated(encoder=[TinyEncoder(), TinyEncoder(16, "other")], ranker=model("gpt2"))
    result = summary.result
    expected = brute(data)
    assert list(result.nll) == LABELS
    for label in LABELS:
        np.testing.assert_allclose(result.nll[label], expected[label], atol=2e-3, err_msg=label)
    for ours, theirs in (
        (result.by_stride, expected["strides"]),
        (result.by_query, expected["queries"]),
        (result.by_ranked["BM25, reranked"], expected["ranked"]),
        (result.by_ranked["BM25, oracle"], expected["oracle"]),
    ):
        assert list(ours) == list(theirs)
        for at in ours:
            np.testing.assert_allclose(ours[at], theirs[at], atol=2e-3)
    for ours, theirs in zip(result.halves, expected["halves"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-3)
    assert abs(result.halves.first.sum() - result.halves.chosen.sum()) > 5e-3
    assert result.words.tolist() == expected["words"]
    totals = [nll.sum() for nll in result.nll.values()]
    assert min(abs(a - b) for i, a in enumerate(totals) for b in totals[:i]) > 5e-3  # no two of them the same


def test_report_has_every_method_and_no_text_of_the_data(evaluated, data, tmp_path, figures):
    summary = evaluated()
    out = tmp_path / "out"
    test = wikitext("test", data)
    lines = [*test.text.split("\n"), *(passage.text for passage in ralm_passages(test, data, words=10).passages)]
    check_files(out, ["figures.png", "methods.png"], [line for line in lines if len(line) > 20])
    text = (out / "report.md").read_text()
    for label, nll in summary.result.nll.items():
        word = np.exp(nll.sum() / summary.result.words.sum())
        token = np.exp(nll.sum() / 40)
        assert re.search(rf"\| {re.escape(label)} \| {word:.2f} \| \[.*\] \| {token:.2f} \|", text), label
        assert f"{label}: word perplexity {word:.2f}" in str(summary)
    change = np.exp((summary.result.nll["BM25, reranked"] - summary.result.nll["BM25, first"]).sum()
                    / summary.result.words.sum()) - 1  # fmt: skip
    assert re.search(rf"\| BM25, reranked \| BM25, first \| .* \| \{change:+.2%} \|", text)
    rows = values_of(out)
    usual = [label for label in LABELS if "HuggingFaceModel" not in label and "(other)" not in label]
    assert list(dict.fromkeys(row["method"] for row in rows)) == usual
    assert len(rows) == 5 * len(usual)
    assert {row["documents"] for row in rows if row["method"] == "no document"} == {"- -"}
    assert all("+" in row["documents"] for row in rows if row["method"] == "BM25, first two")
    settings = settings_of(out)
    assert settings["sizes: stride"] == 4
    assert settings["dtype"] == "float32"  # of the model at hand, not of the argument
    assert settings["threads"] == f"{_env.num_threads()}, torch's own number"
    assert settings["collection"].endswith("common with the evaluated text: 0 and 0 were left out for that")
    assert settings["collection"] in text


# Changes of perplexity against no document.
USUAL = {
    "no document, prefix as short": 0.0, "any passage": 0.1, "BM25, random": 0.1, "BM25, first": -0.05,
    "BM25, reranked": -0.06, "BM25, oracle": -0.1, "BM25, first two": 0.0,
}  # fmt: skip


def made(changes):
    """A result whose methods have these changes against no document, or the usual ones, with a little noise."""
    changes = {**USUAL, **changes}
    noise = np.random.default_rng(0).normal(0, 0.01, (len(changes) + 1, 40))
    nll = {label: 60 + 20 * change + noise[i] for i, (label, change) in enumerate(changes.items())}
    return ralm_report.RalmResult(
        nll={"no document": np.full(40, 60.0), **nll}, picks={}, words=np.full(40, 20), tokens=np.full(40, 30),
        top_scores=np.arange(40.0), by_stride={4: nll["BM25, first"], 8: nll["BM25, first"] + 1},
        by_query={16: nll["BM25, first"], 32: nll["BM25, first"] - 1},
        by_ranked={rule: {1: nll["BM25, first"], 2: nll[rule]}
                   for rule in ("BM25, random", "BM25, reranked", "BM25, oracle")},
        runs=1,
    )  # fmt: skip


def reported(result, stride=4, **options):
    """What the report says of it."""
    return ralm_report.report_of(result, ralm_report.RalmSizes(stride=stride), 200, "ours", **options).markdown()


@pytest.mark.parametrize(
    ("first", "short", "why"),
    [
        (-0.05, 0.02, "is worth more than the text that it takes the place of: -4.8"),
        (0.05, 0.08, "is worth less than the text that it takes the place of: +5.1"),
        (0.0, 0.04, "is not distinguishable from the text that it takes the place of: "),
    ],
)
def test_report_says_what_holds_and_why(first, short, why):
    changes = {"no document, prefix as short": short, "BM25, first": first, "BM25, reranked": first - 0.02}
    text = reported(made({**changes, "BM25, oracle": first - 0.05, "BM25, first two": first}))
    assert f"BM25's document, from this collection, {why}" in text
    held = {-1: "yes", 0: "undecided", 1: "no"}[int(np.sign(first))]
    assert re.search(rf"\| BM25's document lowers perplexity \(Table 1\) \| {held} \| [-+]\d\.\d\d%", text)
    assert "| reranking is better than BM25's first (Table 1) | yes | -1.9" in text
    assert re.search(r"\| BM25, reranked \| BM25, first \| [^|]* \| -1\.9[^|]* \| [^|]* \| lower \|", text)
    assert re.search(r"\| BM25, first two \| BM25, first \| [^|]* \| [^|]* \| [^|]* \| undecided \|", text)
    # Strides and lengths differ by one nat in each window of 20 words.
    assert "| the smaller the stride, the better: s = 4 against 8 (Figure 5) | yes | -4.88% [-4.88%, -4.88%] |" in text
    query = "are the best query (Figure 6) | yes | -4.88% [-4.88%, -4.88%] against the best other, 16 |"
    assert f"| 32 tokens, the paper's choice, {query}" in text
    assert re.search(r"\| 8 \|.* \| \+5\.13% \[\+5\.13%, \+5\.13%\] \|", text)
    assert "dense retriever (Figure 3)" not in text  # there was none


def test_an_oracle_is_no_finding_but_its_choice_by_half_of_the_tokens_is():
    """On noise the oracle is far below BM25's first, and what its choice says of the other half is undecided."""
    rng = np.random.default_rng(1)
    result = made({**dict.fromkeys(USUAL, 0.0), "BM25, oracle": -0.2})
    costs = rng.normal(30, 1, (2, 40))
    noise = result._replace(halves=ralm_report.Halves(*costs, np.full(40, 15)))
    text = reported(noise)
    assert "| an oracle is better than BM25's first (Figure 7) | by construction | -1" in text
    assert "(Figure 7) | undecided | " in text
    assert "If none of the 5 differences were real, 0.2 would be decided by chance." in text
    better = result._replace(halves=ralm_report.Halves(costs[0], costs[0] - 1.5, np.full(40, 15)))
    text = reported(better)
    change = np.expm1(-1.5 / 15)
    said = f"{change:+.2%} [{change:+.2%}, {change:+.2%}]"
    assert f"it is on the other half (Figure 7) | yes | {said} of tokens' perplexity |" in text


def test_the_papers_changes_stand_beside_ours():
    """Table 1: on WikiText-103 GPT-2 S goes from 37.5 to 29.6 and XL from 20.0 to 16.6; RealNews has no predictive."""
    result = made({"BM25, predictive": -0.07})
    text = reported(result)
    assert re.search(r"lowers perplexity \(Table 1\) \| yes \| [^|]* \| -17\.0% to -21\.1% \|", text)
    assert re.search(r"than zero-shot reranking \(Table 1\) \| yes \| [^|]* \| -4\.3% to -6\.3% \|", text)
    text = reported(result, like="RealNews")
    assert re.search(r"lowers perplexity \(Table 1\) \| yes \| [^|]* \| -18\.5% to -24\.4% \|", text)
    assert re.search(r"than zero-shot reranking \(Table 1\) \| yes \| [^|]* \|  \|", text)


def test_the_papers_stride_has_a_finding_of_its_own_where_another_is_run():
    """Its Table 1 retrieves every 4 tokens: the changes there stand beside those of that stride too."""
    result = made({"BM25, first": 0.1})
    often = result._replace(by_stride={4: result.nll["no document"] - 3, 8: result.nll["BM25, first"]})
    change = np.expm1(-3 / 20)
    row = (
        f"| so it does with one for every 4 tokens, the paper's stride (Table 1) | yes | {change:+.2%} [{change:+.2%}, "
        f"{change:+.2%}] | -17.0% to -21.1% |"
    )
    text = reported(often, stride=8)
    assert row in text
    assert "| BM25's document lowers perplexity (Table 1) | no | +10" in text
    assert "the paper's stride" not in reported(result)


def test_findings_are_undecided_where_zero_is_in_the_interval():
    rng = np.random.default_rng(0)
    result = made({})
    noise = rng.standard_normal(40)
    result.nll["BM25, reranked"] = result.nll["BM25, first"] + noise
    result.by_stride[8] = result.by_stride[4] + noise
    result.by_query[32] = result.by_query[16] + noise
    text = reported(result)
    assert text.count(" | undecided | ") >= 3
    for finding in ("reranking is better", "the smaller the stride", "32 tokens, the paper's choice"):
        assert re.search(rf"\| {finding}[^|]* \| undecided \| [-+]", text), finding


def test_news_are_predicted_from_news(evaluated, data, tmp_path):
    """The training articles are retrieved from, but for one that has eight words of a test article."""
    words = ["sun", "moon", "rain", "wind", "cat", "dog", "tree", "stone", "river", "fish", "bird", "snow"]
    rng = np.random.default_rng(0)
    news = data / "ag_news"
    news.mkdir(exist_ok=True)
    tests = [" ".join(rng.choice(words, 30)) for _ in range(40)]
    trains = [" ".join(rng.choice(words, 20)) for _ in range(30)] + ["new " + " ".join(tests[3].split()[5:14])]
    (news / "test.csv").write_text("".join(f'"{i % 4 + 1}","title","{text}"\n' for i, text in enumerate(tests)))
    (news / "train_sample_10k.tsv").write_text("".join(f"{text}\t{i % 4 + 1}\n" for i, text in enumerate(trains)))
    summary = evaluated(text="ag-news", encoder=None)
    text = (tmp_path / "out" / "report.md").read_text()
    assert "AG News test" in text.splitlines()[0]
    assert "0 and 1 were left out for that" in text
    assert "own article" not in summary.result.nll
    assert settings_of(tmp_path / "out")["texts"] == "ag-news"
    used = {i for row in summary.result.picks["BM25, first"] for ids in row for i in ids}
    assert used <= set(range(60))  # of pieces of ten words
    assert used


def test_files_are_predicted_from_the_other_files(evaluated, tmp_path):
    """Perplexity is of tokens; every fifth file is predicted, and none of it is retrieved."""
    rng, words = np.random.default_rng(0), ralm_data.WORDS
    folder = tmp_path / "manuals"
    folder.mkdir()
    for i in range(10):
        (folder / f"page{i}.txt").write_text("\n".join(" ".join(rng.choice(words, 6)) for _ in range(12)))
    summary = evaluated(text=folder, bm25="pyserini")
    result, report = summary.result, (tmp_path / "out" / "report.md").read_text()
    assert result.unit == "token"
    assert "own article" not in result.nll
    value = np.exp(result.nll["BM25, first"].sum() / result.tokens.sum())
    assert f"BM25, first: token perplexity {value:.2f}" in str(summary)
    assert re.search(rf"\| BM25, first \| {value:.2f} \| \[", report)
    assert "evenly spread over manuals, every fifth file;" in report
    assert "words, of its other files. None has" in report
    assert "word perplexity" not in report
    used = {i for row in result.picks["BM25, first"] for ids in row for i in ids}
    assert used <= set(range(8 * 8))  # 72 words in pieces of ten, of eight files
    assert str(tmp_path) not in report


def test_findings_name_further_rankers_and_encoders():
    further = {"BM25, first, in front": -0.1, "BM25, reranked by small": -0.08, "BM25, predictive": -0.07}
    result = made({**further, "dense (other), first": -0.02})._replace(unit="token")
    text = reported(result, text="AG News test")
    for finding in (
        "so it does in front of the whole window (Table 1)",
        "reranking by a second model is better than BM25's first (section 6.1)",
        "predictive reranking is better than BM25's first (Table 1)",
        "predictive reranking is better than zero-shot reranking (Table 1)",
        "BM25 is better than dense (other) retrieval (Figure 3)",
    ):
        assert f"| {finding} | yes | " in text
    # 20 * 0.02 nats of the 30 tokens of each window.
    change = np.expm1(20 * -0.02 / 30)
    assert re.search(rf"\| BM25, reranked by small \| BM25, reranked \| [^|]* \| \{change:+.1%}"[:-1], text)
    assert "| BM25, first, in front | no document | a document in front of the whole window" in text
    assert "word perplexity" not in text
    assert "| method | token perplexity | 95 % interval | against no document |" in text


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"text": "books"}, "ralm: text must be wikitext, ag-news, python or an existing folder, got 'boo"),
        ({"bm25": "atire"}, "ralm: bm25 must be one of 'lucene', 'pyserini', got 'atire'"),
        ({"sizes": {**SIZES, "stride": 3}}, "ralm: stride must divide the 8 tokens of a target, got 3"),
        ({"sizes": {**SIZES, "past": 0}}, "ralm: past must be at least 1, got 0"),
        ({"sizes": {**SIZES, "queries": (8, 0)}}, "ralm: queries must be at least 1, got 0"),
        ({"sizes": {**SIZES, "window": 24}}, "ralm: window must be above document, past and target"),
        ({"sizes": {**SIZES, "windows": 10**6}}, r"ralm: windows must be at most the \d+ of the text, got"),
    ],
)
def test_bad_options(evaluated, tmp_path, options, match):
    with pytest.raises(ValueError, match=match):
        evaluated(**options)
    assert not (tmp_path / "out").exists()


# --- The command.


def test_encoders_of_the_command(monkeypatch):
    seen = {}
    monkeypatch.setattr(papers, "ralm", lambda **options: seen.update(options))
    for given, encoder in (("none", None), ("minilm", "minilm"), ("minilm, mpnet", ["minilm", "mpnet"])):
        invoke("ralm", "--quiet", "--encoder", given)
        assert seen["encoder"] == encoder


def test_a_stopped_run_goes_on(evaluated, tmp_path):
    whole = evaluated(out=tmp_path / "whole", cache=tmp_path / "another", encoder=None)
    with pytest.raises(KeyboardInterrupt):
        evaluated(encoder=None, progress=stopping(lambda done, total: done >= 32))
    assert not (tmp_path / "out").exists()
    seen = []
    again = evaluated(encoder=None, progress=lambda *step: seen.append(step))
    assert again.result.runs == whole.result.runs > again.cached >= 32
    assert seen[0] == (0, whole.result.runs)
    for label, nll in whole.result.nll.items():
        np.testing.assert_allclose(again.result.nll[label], nll, atol=1e-4)
    assert evaluated(encoder=None).cached == whole.result.runs
