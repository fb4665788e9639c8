"""LanceDB searches, the service picks of what was found, LanceDB has the texts. Needs ``lancedb``."""

import tempfile

import lancedb
from serve_here import FOUND, QUESTION, best_together, embed, rows, service, show

question = embed([QUESTION])[0]
with tempfile.TemporaryDirectory() as folder, service() as url:
    notes = [{"id": id, "text": text, "vector": vector} for id, text, vector in rows()]
    table = lancedb.connect(folder).create_table("notes", notes)
    found = table.search(question).distance_type("cosine").select(["id"]).limit(FOUND).to_list()
    ids = [row["id"] for row in found]
    picks = best_together(url, question, ids)
    picked = table.search().where(f"id IN ({', '.join(map(str, picks))})").to_list()
    texts = {row["id"]: row["text"] for row in picked}
    show(ids, [texts[id] for id in picks])
