"""In-Context RALM: documents put before the text of an unchanged language model, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._base.checks import whole
from .._base.types import NDArray as Array
from .language_model import PairError, TokenModel
from .language_model import texts as checked
from .retrievers import BM25Retriever, Found, Retriever
from .storage.portions import portions
from .tokenization import leading, tokens_alone, tokens_and_ends

RULES = ("none", "first", "random", "rerank", "oracle")
_BLOCK = 16  # windows scored in one call: what a killed run with a cache loses at most


class Window(NamedTuple):
    """Tokens `begin` to `end` of a text, predicted from those that go before, back to `start`."""

    start: int
    begin: int
    end: int


class Text(NamedTuple):
    """A text as tokens."""

    text: str
    tokens: Array  # (N,) int64
    ends: Array  # (N,) int64, where each token's characters end; never falling

    def words(self, windows: Sequence[Window]) -> Array:
        """Spaces in the characters of the windows' targets, (W,): what word perplexity divides by."""
        ends = np.concatenate(([0], self.ends))
        return np.array([self.text.count(" ", ends[begin], ends[end]) for _, begin, end in windows], np.int64)


class RalmScores(NamedTuple):
    """What a text cost, window by window."""

    logp: list[Array]  # log-probability (nats) of each target token
    chosen: Array  # (W,) int64, the document of each window; -1 for none


def sliding_windows(size: int, length: int, stride: int) -> list[Window]:
    """Return windows over `size` tokens, `stride` apart; each predicts the tokens that the one before did not reach.

    The first has `length` tokens and predicts all but the first of them, the last may predict fewer than `stride`, as
    in In-Context RALM's code. So every token but the first is predicted once.

    Examples
    --------
    >>> [tuple(window) for window in sliding_windows(9, 4, 2)]
    [(0, 1, 4), (2, 4, 6), (4, 6, 8), (6, 8, 9)]
    """
    op = "sliding_windows"
    size, length, stride = (whole(op, *each) for each in (("size", size), ("length", length), ("stride", stride)))
    if size < 2:
        raise ValueError(f"{op}: size must be at least 2, got {size}")
    if not 1 <= stride < length:
        raise ValueError(f"{op}: stride must be from 1 to length - 1 = {length - 1}, got {stride}")
    windows = [Window(0, 1, min(length, size))]
    while windows[-1].end < size:
        start, end = windows[-1].start + stride, windows[-1].end
        windows.append(Window(start, end, min(start + length, size)))
    return windows


class Ralm:
    """A language model that reads, before each window of a text, a document that its last tokens retrieve.

    A document overwrites the first tokens of the window, so that the window stays as long as it was::

        p(x_begin..end | d_1 ... d_m, x_{start + m}, ..., x_{begin - 1})

    Special tokens that the tokenizer puts before a text (BOS) stand before the document, outside of the window. The
    query is the text of the `query_tokens` tokens before the target. The model is not changed, and of its
    probabilities none but those of targets, and of the tokens that rank the documents, is computed.

    Parameters
    ----------
    model : TokenModel
        `HuggingFaceModel`, or a `CachedModel` of one: then no window is scored twice, whatever the rule.
    documents : sequence of N str
        Titles included: In-Context RALM has them on a line of their own before the text.
    retriever : Retriever, optional
        Finds positions among `documents`. Default: `BM25Retriever(documents)`.
    query_tokens : int
        The paper's l.
    document_tokens : int
        A document is cut after so many tokens; of several together each gets an equal part of them.
    past_tokens : int
        Tokens before the target by which "rerank" ranks the documents, the paper's s'.

    Raises
    ------
    TypeError, ValueError
        A model without a tokenizer that knows character positions; sizes below 1.

    Notes
    -----
    Source: Ram et al., In-Context Retrieval-Augmented Language Models (TACL 2023), sections 3 to 6; the sizes by
    default are those of its code.
    """

    def __init__(
        self,
        model: TokenModel,
        documents: Sequence[str],
        retriever: Retriever | None = None,
        *,
        query_tokens: int = 32,
        document_tokens: int = 256,
        past_tokens: int = 16,
    ) -> None:
        op = "Ralm"
        for name, value in (
            ("query_tokens", query_tokens),
            ("document_tokens", document_tokens),
            ("past_tokens", past_tokens),
        ):
            if value < 1:
                raise ValueError(f"{op}: {name} must be at least 1, got {value}")
        tokenizer: Any = getattr(model, "tokenizer", None)
        if not getattr(tokenizer, "is_fast", False):
            got = f"{type(tokenizer).__name__} of {type(model).__name__}"
            raise TypeError(f"{op}: model must have a tokenizer that knows character positions (a fast one), got {got}")
        self.model, self.tokenizer = model, tokenizer
        self.documents = checked(op, "documents", documents)
        self.retriever = BM25Retriever(self.documents) if retriever is None else retriever
        self.query_tokens, self.document_tokens, self.past_tokens = query_tokens, document_tokens, past_tokens
        self._leading, self._document_ids = leading(tokenizer), dict[int, list[int]]()

    def encode(self, text: str) -> Text:
        """Return the tokens of a text, without any that a tokenizer adds."""
        (tokens,), (ends,) = tokens_and_ends(self.tokenizer, [text])
        # The bytes of one character may be tokens of their own, all with its positions.
        return Text(text, np.array(tokens, np.int64), np.maximum.accumulate(np.array(ends, np.int64)))

    def queries(self, text: Text, places: Sequence[int], length: int | None = None) -> list[str]:
        """Return the text of the `length` (default: `query_tokens`) tokens before each place."""
        size = self.query_tokens if length is None else length
        return [self.tokenizer.decode(text.tokens[max(0, place - size) : place]) for place in places]

    def retrieve(self, text: Text, places: Sequence[int], n: int, length: int | None = None) -> Found:
        """Return the n best documents for each place: ids (W, n), padded with -1, and their scores."""
        return self.retriever.search(self.queries(text, places, length), n)

    def add(self, document: str) -> int:
        """Add a document that the retriever does not know; return its position."""
        self.documents.append(document)
        return len(self.documents) - 1

    def document(self, ids: Sequence[int]) -> list[int]:
        """Return the tokens that are put before a window for these documents, in their order."""
        limit = self.document_tokens // max(1, len(ids))
        for i in ids:
            if i not in self._document_ids:
                self._document_ids[i] = tokens_alone(self.tokenizer, [self.documents[i]])[0][: self.document_tokens]
        return [token for i in ids for token in self._document_ids[i][:limit]]

    def logprobs(
        self,
        text: Text,
        windows: Sequence[Window],
        documents: Sequence[Sequence[int]],
        *,
        past: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Array]:
        """Return log-probabilities of the last `past` tokens before each window's target and of the target.

        Parameters
        ----------
        text : Text
        windows : W windows of it
        documents : W sequences of positions among the documents
            Which to put before each window; an empty one for none.
        past : int
        progress : callable, optional
            Called with the windows done and their number, first with 0.

        Returns
        -------
        list of W arrays (past + end - begin,) float32
            In nats.

        Raises
        ------
        ValueError
            A window with no token left between its document and what is scored.
        PairError
            A window that the model cannot score; ``pair`` is its position.
        """
        return self._logprobs(text, windows, documents, range(len(windows)), past=past, progress=progress)

    def _logprobs(
        self,
        text: Text,
        windows: Sequence[Window],
        documents: Sequence[Sequence[int]],
        numbers: Sequence[int],
        *,
        past: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Array]:
        """Do what `logprobs` does; errors know the windows by these numbers."""
        contexts, answers = [], []
        for i, (start, begin, end), ids in zip(numbers, windows, documents, strict=True):
            document = self.document(ids)
            first = begin - past
            if start + len(document) >= first:
                need = f"{len(document)} tokens of documents, {past} that rank them and one more"
                raise ValueError(
                    f"logprobs: windows must have room before the target for {need}, got {begin - start} in window {i}"
                )
            contexts.append([*self._leading, *document, *text.tokens[start + len(document) : first].tolist()])
            answers.append(text.tokens[first:end].tolist())
        found: dict[int, Array] = {}
        for part in portions(len(contexts), _BLOCK, progress):
            try:
                scores = self.model.score_tokens(contexts[part], answers[part])
            except PairError as error:
                raise PairError(error.op, error.rule, numbers[part.start + error.pair]) from error
            found.update(enumerate(np.split(scores.logp, scores.cu_answers[1:-1]), part.start))
        return [found[i] for i in range(len(contexts))]

    def score(
        self, text: Text, windows: Sequence[Window], *, choose: str = "first", candidates: int = 16, seed: int = 0
    ) -> RalmScores:
        """Score windows, each with the document that the rule chooses among those retrieved.

        ======  ==========================================================================================
        none    no document
        first   the retriever's first
        random  any of the `candidates` first
        rerank  zero-shot reranking: ``argmax_i log p(y | d_i, ...)``, y the `past_tokens` tokens before the target
                (section 6.1)
        oracle  the same with y the target (equation 5): what no rule can surpass
        ======  ==========================================================================================

        A window that predicts its tokens from the second on (the first of a text) has no query and gets no document,
        nor does one for which nothing is found. Equal log-probabilities go to the retriever's order.

        Parameters
        ----------
        text : Text
        windows : W windows, of `sliding_windows` for instance
        choose : {"none", "first", "random", "rerank", "oracle"}
        candidates : int
            Documents among which a rule chooses.
        seed : int
            Of "random".

        Raises
        ------
        ValueError
            An unknown rule, or a window without room for the document.

        Notes
        -----
        "rerank" and "oracle" run the model `candidates` times for a window, the others once.
        """
        if choose not in RULES:
            raise ValueError(f"score: choose must be one of {', '.join(RULES)}, got {choose!r}")
        if candidates < 1:
            raise ValueError(f"score: candidates must be at least 1, got {candidates}")
        chosen = np.full(len(windows), -1, np.int64)
        parts: dict[int, Array] = {}
        with_query = [w for w, window in enumerate(windows) if window.begin - window.start > 1]
        if choose != "none" and with_query:
            places, n = [windows[w].begin for w in with_query], 1 if choose == "first" else candidates
            rows, rng = self.retrieve(text, places, n).ids, np.random.default_rng(seed)
            found = {w: row[row >= 0] for w, row in zip(with_query, rows, strict=True) if row[0] >= 0}
            if choose in ("rerank", "oracle"):
                past = self.past_tokens if choose == "rerank" else 0
                pairs = [(w, i) for w, ids in found.items() for i in ids]
                numbers, documents = [w for w, _ in pairs], [(i,) for _, i in pairs]
                scored = iter(self._logprobs(text, [windows[w] for w in numbers], documents, numbers, past=past))
                for w, ids in found.items():
                    logps = [next(scored) for _ in ids]
                    sums = [logp[: past or None].sum(dtype=np.float64) for logp in logps]
                    best = int(np.argmax(sums))  # the first of equal ones
                    chosen[w], parts[w] = ids[best], logps[best][past:]
            else:
                for w, ids in found.items():
                    chosen[w] = ids[rng.integers(len(ids))]
        rest = [w for w in range(len(windows)) if w not in parts]
        alone = [() if chosen[w] < 0 else (int(chosen[w]),) for w in rest]
        parts |= zip(rest, self._logprobs(text, [windows[w] for w in rest], alone, rest), strict=True)
        return RalmScores([parts[w] for w in range(len(windows))], chosen)
