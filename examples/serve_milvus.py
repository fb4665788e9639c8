"""Milvus searches, the service picks of what was found, Milvus has the texts.

Milvus Lite; needs ``pymilvus`` and ``milvus-lite``.
"""

import tempfile

from pymilvus import MilvusClient
from serve_here import FOUND, QUESTION, best_together, embed, rows, service, show

question = embed([QUESTION])[0]
with tempfile.TemporaryDirectory() as folder, service() as url:
    client = MilvusClient(f"{folder}/notes.db")
    client.create_collection("notes", dimension=len(question), metric_type="COSINE")
    client.insert("notes", [{"id": id, "text": text, "vector": vector} for id, text, vector in rows()])
    ids = [hit["id"] for hit in client.search("notes", data=[question.tolist()], limit=FOUND)[0]]
    picks = best_together(url, question, ids)
    texts = {row["id"]: row["text"] for row in client.get("notes", picks, output_fields=["text"])}
    show(ids, [texts[id] for id in picks])
    client.close()
