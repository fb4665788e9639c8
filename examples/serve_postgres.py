"""PostgreSQL searches vectors in arrays, the service picks of what was found, PostgreSQL has the texts.

Needs ``psycopg``. The database is the one of DATABASE_URL. Without pgvector the search is a sum in SQL, which is for
few rows; with it, ``ORDER BY embedding <=> %s``.
"""

import os

import psycopg
from serve_here import FOUND, QUESTION, best_together, embed, rows, service, show

NEAREST = """
    SELECT id FROM notes, unnest(embedding, %s::real[]) AS pair(ours, asked)
    GROUP BY id ORDER BY sum(ours * asked) DESC, id LIMIT %s
"""

question = embed([QUESTION])[0]
with psycopg.connect(os.environ.get("DATABASE_URL", "")) as store, service() as url:
    store.execute("CREATE TEMPORARY TABLE notes (id bigint PRIMARY KEY, text text, embedding real[])")
    store.cursor().executemany("INSERT INTO notes VALUES (%s, %s, %s)", rows())
    ids = [id for (id,) in store.execute(NEAREST, (question.tolist(), FOUND))]
    picks = best_together(url, question, ids)
    texts = dict(store.execute("SELECT id, text FROM notes WHERE id = ANY(%s)", (picks,)).fetchall())
    show(ids, [texts[id] for id in picks])
