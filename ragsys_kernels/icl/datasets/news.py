"""AG News as a text to predict and a collection of the same kind to retrieve from."""

from __future__ import annotations

from ..._base.types import PathLike
from .boolq import Passage
from .classification import classification_set
from .wikitext import PassageSet, WikiText, kept_passages


def news_texts(folder: PathLike | None = None, *, words: int = 100) -> tuple[WikiText, PassageSet]:
    """Return the test articles of AG News, end to end as one text, and the training articles as passages.

    What In-Context RALM has in its training data: texts of the evaluated kind, of the same events. WikiText's
    test text with other passages of Wikipedia is the control. Training articles that have `OVERLAP` words in a row in
    common with the evaluated text are left out.

    Parameters
    ----------
    folder : path, optional
        See `classification_set`.
    words : int
        As for `ralm_passages`.

    Raises
    ------
    FileNotFoundError, ValueError
        Those of `classification_set`.
    """
    found = classification_set("ag-news", folder)
    articles = [Passage("", f"{text}\n") for text in found.test_texts]
    text = "".join(article.text for article in articles)
    kept, _, same_words = kept_passages([Passage("", text) for text in found.train_texts], [], text, words)
    return WikiText("ag-news", text, articles, found.source), PassageSet(kept, 0, same_words, {})
