"""Chroma searches, the service picks of what was found, Chroma has the texts. Needs ``chromadb``."""

import chromadb
from serve_here import FOUND, NOTES, QUESTION, best_together, embed, service, show

question = embed([QUESTION])[0]
with service() as url:
    client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    notes = client.create_collection("notes", configuration={"hnsw": {"space": "cosine"}}, embedding_function=None)
    # Chroma's ids are strings; those of the service are the store's own, of either kind.
    notes.add([str(id) for id in NOTES], embed(NOTES.values()), documents=list(NOTES.values()))
    ids = [int(id) for id in notes.query(query_embeddings=[question], n_results=FOUND, include=[])["ids"][0]]
    picks = best_together(url, question, ids)
    rows = notes.get([str(id) for id in picks])
    texts = dict(zip(rows["ids"], rows["documents"], strict=True))
    show(ids, [texts[str(id)] for id in picks])
