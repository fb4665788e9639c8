"""Qdrant searches, the service picks of what was found, Qdrant has the texts. Local mode; needs ``qdrant-client``."""

from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams
from serve_here import FOUND, QUESTION, best_together, embed, rows, service, show

question = embed([QUESTION])[0]
with service() as url:
    client = QdrantClient(":memory:")
    client.create_collection("notes", VectorParams(size=len(question), distance=Distance.COSINE))
    client.upsert("notes", [PointStruct(id=id, vector=vector, payload={"text": text}) for id, text, vector in rows()])
    ids = [point.id for point in client.query_points("notes", query=question.tolist(), limit=FOUND).points]
    picks = best_together(url, question, ids)
    texts = {point.id: point.payload["text"] for point in client.retrieve("notes", picks)}
    show(ids, [texts[id] for id in picks])
    client.close()
