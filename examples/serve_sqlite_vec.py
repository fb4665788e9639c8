"""sqlite-vec searches, the service picks of what was found, SQLite has the texts. Needs ``sqlite-vec``.

Python's sqlite3 must be able to load extensions; some builds leave that out.
"""

import sqlite3

import sqlite_vec
from serve_here import FOUND, NOTES, QUESTION, best_together, embed, rows, service, show

question = embed([QUESTION])[0]
with service() as url:
    store = sqlite3.connect(":memory:")
    store.enable_load_extension(True)
    sqlite_vec.load(store)
    store.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")
    store.executemany("INSERT INTO notes VALUES (?, ?)", NOTES.items())
    store.execute(f"CREATE VIRTUAL TABLE vectors USING vec0(embedding float[{len(question)}] distance_metric=cosine)")
    vectors = [(id, sqlite_vec.serialize_float32(vector)) for id, _, vector in rows()]
    store.executemany("INSERT INTO vectors (rowid, embedding) VALUES (?, ?)", vectors)
    nearest = "SELECT rowid FROM vectors WHERE embedding MATCH ? AND k = ? ORDER BY distance"
    ids = [id for (id,) in store.execute(nearest, (question, FOUND))]
    picks = best_together(url, question, ids)
    texts = dict(store.execute(f"SELECT id, text FROM notes WHERE id IN ({', '.join('?' * len(picks))})", picks))
    show(ids, [texts[id] for id in picks])
    store.close()
