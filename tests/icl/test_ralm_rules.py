"""What a window of In-Context RALM reads and which document it gets, by hand: a character a token, a table as model."""

from types import SimpleNamespace

import numpy as np
import pytest

from ragsys_kernels.icl import Ralm, sliding_windows
from ragsys_kernels.icl.ralm import RULES, Window
from ragsys_kernels.icl.retrievers import Found

TEXT = "ab cd efghij klmn op"
DOCUMENTS = ["0000", "11", "222", "3"]


class Characters:
    """A tokenizer: each character is a token, its number that of the character."""

    is_fast = True
    backend_tokenizer = SimpleNamespace(normalizer=None, pre_tokenizer=None, post_processor=None, to_str=lambda: "{}")

    def __call__(self, texts, **_):
        if isinstance(texts, str):
            return {"input_ids": [ord(c) for c in texts]}
        spans = [[(i, i + 1) for i in range(len(text))] for text in texts]
        return {"input_ids": [[ord(c) for c in text] for text in texts], "offset_mapping": spans}

    def decode(self, ids):
        return "".join(map(chr, ids))


class Table:
    """A model that says of each target what the table has for the character that is read first."""

    def __init__(self, table=None):
        self.table, self.calls, self.tokenizer = table or {}, [], Characters()

    def score_tokens(self, contexts, answers):
        read = [("".join(map(chr, c)), "".join(map(chr, a))) for c, a in zip(contexts, answers, strict=True)]
        self.calls.append(read)
        logp = [self.table.get(context[0], {}).get(c, -1.0) for context, answer in read for c in answer]
        cu = np.cumsum([0, *map(len, answers)])
        return SimpleNamespace(logp=np.array(logp, np.float32), cu_answers=cu)


class Told:
    """A retriever that finds the same rows whatever is asked."""

    def __init__(self, *ids):
        self.ids, self.asked = ids, []

    def search(self, queries, n):
        self.asked.append((queries, n))
        rows = np.full((len(queries), n), -1)
        for row in rows:
            row[: len(self.ids[:n])] = self.ids[:n]
        return Found(rows, -np.arange(n, dtype=np.float32)[None].repeat(len(queries), 0))


def system(*ids, table=None, query_tokens=3, document_tokens=4, past_tokens=2):
    made = Ralm(
        Table(table), DOCUMENTS, Told(*ids), query_tokens=query_tokens, document_tokens=document_tokens,
        past_tokens=past_tokens,
    )  # fmt: skip
    return made, made.encode(TEXT)


def read(made):
    return [pair for call in made.model.calls for pair in call]


# --- The first window.


@pytest.mark.parametrize("rule", RULES)
def test_the_first_window_asks_for_nothing_and_gets_no_document(rule):
    made, text = system(2, 3)
    windows = sliding_windows(20, 12, 6)
    assert windows == [(0, 1, 12), (6, 12, 18), (12, 18, 20)]
    scores = made.score(text, windows, choose=rule, candidates=2)
    assert scores.chosen[0] == -1
    assert [len(logp) for logp in scores.logp] == [11, 6, 2]
    assert (TEXT[0], TEXT[1:12]) in read(made)
    asked = [] if rule == "none" else [([TEXT[9:12], TEXT[15:18]], 1 if rule == "first" else 2)]
    assert made.retriever.asked == asked


def test_a_text_of_one_window_is_read_once():
    for rule in RULES:
        made, text = system(2, 3)
        scores = made.score(text, sliding_windows(20, 40, 6), choose=rule)
        assert (scores.chosen.tolist(), made.retriever.asked) == ([-1], [])
        assert made.model.calls == [[(TEXT[0], TEXT[1:])]]


def test_two_tokens_before_the_target_are_enough_for_a_query():
    """One is not, wherever the window begins: a document would leave nothing of it."""
    made, text = system(3)
    scores = made.score(text, [Window(5, 6, 9), Window(5, 7, 9), Window(0, 1, 3), Window(0, 2, 3)])
    assert scores.chosen.tolist() == [-1, 3, -1, 3]
    assert made.retriever.asked == [([TEXT[4:7], TEXT[0:2]], 1)]
    assert read(made) == [
        (TEXT[5], TEXT[6:9]),
        ("3" + TEXT[6], TEXT[7:9]),
        (TEXT[0], TEXT[1:3]),
        ("3" + TEXT[1], TEXT[2]),
    ]


def test_windows_that_find_nothing_are_read_alone():
    for rule in RULES:
        made, text = system()
        scores = made.score(text, [Window(5, 10, 12)], choose=rule, candidates=3)
        assert scores.chosen.tolist() == [-1]
        assert read(made) == [(TEXT[5:10], TEXT[10:12])]


def test_words_of_the_first_window_leave_out_its_first_token():
    made, _ = system()
    text = made.encode(" a b c")
    assert text.words([Window(0, 1, 6), Window(0, 1, 2), Window(0, 2, 3), Window(0, 3, 6)]).tolist() == [2, 0, 1, 1]
    assert text.words([Window(0, 0, 6), Window(0, 0, 1)]).tolist() == [3, 1]  # unless it is a target


def test_each_window_has_its_documents():
    made, text = system()
    for documents in ([], [(), ()]):
        with pytest.raises(ValueError, match="argument"):
            made.logprobs(text, [Window(5, 10, 12)], documents)
    assert made.model.calls == []


# --- Later windows.


def test_documents_take_the_place_of_the_first_tokens():
    made, text = system(0)
    made.score(text, [Window(6, 12, 18)])
    assert read(made) == [("0000" + TEXT[10:12], TEXT[12:18])]
    made, text = system(0, document_tokens=3)
    made.score(text, [Window(6, 12, 18)])
    assert read(made) == [("000" + TEXT[9:12], TEXT[12:18])]
    assert made.document([0, 3, 2]) == [ord(c) for c in "032"]
    assert made.document([]) == []
    assert made.document([made.add("4444")]) == [ord("4")] * 3


def test_one_token_must_stay_between_the_document_and_what_is_scored():
    made, text = system(0)
    (found,) = made.logprobs(text, [Window(6, 11, 13)], [[0]])
    assert read(made) == [("0000" + TEXT[10], TEXT[11:13])]
    assert len(found) == 2
    with pytest.raises(ValueError, match=r"room before the target for 4 tokens of documents, 0 .*, got 4 in window 0"):
        made.logprobs(text, [Window(6, 10, 13)], [[0]])
    with pytest.raises(ValueError, match=r"room before the target for 4 tokens of documents, 1 .*, got 5 in window 0"):
        made.logprobs(text, [Window(6, 11, 13)], [[0]], past=1)


def test_reranking_looks_at_the_tokens_before_the_target_and_the_oracle_at_the_target():
    """Of the window "ghij klm" the last four are the target; "j " ranks."""
    table = {
        "1": {"j": -5, " ": -1, "k": -1, "l": -1, "m": -1, "n": -9},  # before the target -6, target -12
        "2": {"j": -1, " ": -2, "k": -4, "l": -4, "m": -4, "n": -1},  # -3, -13
        "3": {"j": -2, " ": -1, "k": -2, "l": -2, "m": -2, "n": -2},  # -3, -8
    }
    window = Window(6, 13, 17)
    assert (TEXT[11:13], TEXT[13:17]) == ("j ", "klmn")
    for rule, best, expected in (
        ("first", 1, [-1, -1, -1, -9]),
        ("rerank", 2, [-4, -4, -4, -1]),  # equal to 3, which comes after it
        ("oracle", 3, [-2, -2, -2, -2]),
    ):
        made, text = system(1, 2, 3, table=table)
        scores = made.score(text, [window], choose=rule, candidates=3)
        assert scores.chosen.tolist() == [best]
        assert scores.logp[0].tolist() == expected
        assert len(read(made)) == (1 if rule == "first" else 3)
    made, text = system(3, 2, 1, table=table)
    assert made.score(text, [window], choose="rerank", candidates=3).chosen.tolist() == [3]
    made, text = system(1, 2, 3, table=table, past_tokens=1)  # " " alone: -1, -2, -1
    assert made.score(text, [window], choose="rerank", candidates=3).chosen.tolist() == [1]
    made, text = system(1, 2, 3, table=table)
    assert made.score(text, [window], choose="oracle", candidates=1).chosen.tolist() == [1]


def test_random_documents_follow_the_seed():
    """Of those that are found; more windows than go to the model at once, each with its own scores."""
    table = {name: dict.fromkeys(TEXT, -i) for i, name in enumerate("0123")}
    made, text = system(3, 1, 2, 0, table=table)
    for seed in (0, 7):
        rng = np.random.default_rng(seed)
        scores = made.score(text, [Window(0, 10, 12)] * 200, choose="random", candidates=5, seed=seed)
        assert scores.chosen.tolist() == [[3, 1, 2, 0][rng.integers(4)] for _ in range(200)]
        assert [logp.tolist() for logp in scores.logp] == [[-i, -i] for i in scores.chosen]


def test_defaults_are_those_of_the_papers_code():
    """The first document of sixteen, 32 tokens that ask, 256 of documents, 16 that rank."""
    made = Ralm(Table(), DOCUMENTS, Told(3))
    assert (made.query_tokens, made.document_tokens, made.past_tokens) == (32, 256, 16)
    text = made.encode("x" * 100)
    assert made.score(text, [Window(0, 50, 60)]).chosen.tolist() == [3]
    made.score(text, [Window(0, 50, 60)], choose="random")
    assert made.retriever.asked == [(["x" * 32], 1), (["x" * 32], 16)]
    assert made.queries(text, [5, 50], 40) == ["x" * 5, "x" * 40]
    assert Ralm(Table(), DOCUMENTS, Told(), query_tokens=1, document_tokens=1, past_tokens=1).past_tokens == 1


def test_progress_is_told_from_nothing_to_all():
    made, text = system()
    seen = []
    made.logprobs(text, [Window(5, 10, 12)] * 20, [()] * 20, progress=lambda *done: seen.append(done))
    assert seen[0] == (0, 20)
    assert seen[-1] == (20, 20)
    assert [len(call) for call in made.model.calls] == np.diff([done for done, _ in seen]).tolist()
    assert max(map(len, made.model.calls)) <= 16
    assert len(made.logprobs(text, [Window(5, 10, 12)], [()])[0]) == 2
