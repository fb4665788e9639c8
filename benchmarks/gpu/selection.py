"""The problems of selection on a GPU, and who is timed on them: the library there and on the CPU, torch's own ops."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import ragsys_kernels as rk
from benchmarks.gpu.shapes import Pools
from benchmarks.harness import gate
from benchmarks.harness.contender import OURS, Contender
from benchmarks.suites.scoring import compiled
from benchmarks.suites.scoring_shapes import COMPILED
from ragsys_kernels import testing

COMPOSITE, CPU = "torch", f"{OURS} on the CPU"
REPLAYED, WHOLE_REPLAYED = 8, 2  # queries whose picks are replayed in float64: of pools, of the whole corpus


class Problem:
    """Unit rows in clusters, queries near them, and pools of random rows."""

    def __init__(self, shape: Pools, device: Any) -> None:
        self.shape, self.dtype = shape, shape.dtype
        generator = torch.Generator().manual_seed(0)
        centres = torch.randn((50, shape.D), generator=generator)

        def vectors(count: int) -> Any:
            near = centres[torch.randint(50, (count,), generator=generator)]
            rows = near + torch.randn((count, shape.D), generator=generator)
            return rows / rows.norm(dim=1, keepdim=True)

        self.rows = vectors(shape.N).to(device, getattr(torch, shape.dtype))
        self.queries = vectors(shape.Q).to(device)
        self.candidates = None
        if shape.P is not None:
            # Distinct rows without sorting: a random first one, the others at equal distances.
            steps = torch.arange(shape.P) * (shape.N // shape.P)
            first = torch.randint(shape.N, (shape.Q, 1), generator=generator)
            self.candidates = ((first + steps) % shape.N).to(device)

    @property
    def bytes(self) -> int:
        """Bytes of one read of the pools."""
        rows = self.shape.N if self.candidates is None else self.candidates.numel()
        return rows * self.shape.D * self.rows.element_size()

    def arguments(self, queries: slice = slice(None), host: bool = False) -> dict[str, Any]:
        """Return the arguments of the library's call; "dot" of unit vectors gives cosines, and nothing is scaled."""
        moved = {"queries": self.queries[queries], "embeddings": self.rows}
        if self.candidates is not None:
            moved["candidates"] = self.candidates[queries]
        return {**{name: x.cpu() if host else x for name, x in moved.items()}, "k": self.shape.K, "metric": "dot"}

    def check(self, contender: Contender, result: Any) -> np.ndarray | None:
        """Assert that a result is right; return its picks, if it has any."""
        if self.shape.op == "search":
            if contender.name in (OURS, CPU):
                cosines = np.asarray((self.queries[:REPLAYED].double() @ self.rows.double().T).cpu())
                gate.nearest(contender.name, cosines, np.asarray(torch.as_tensor(result[0])[:REPLAYED].cpu()))
            return None
        if contender.name == OURS:
            testing.check_selection(self.shape.op, *self._replayed(result))
        return None if contender.picks is None else contender.picks(result)

    def _replayed(self, result: Any) -> tuple[dict[str, Any], rk.Selection]:
        """Return arguments and result of few queries on the host, with no rows but those that their pools name."""
        count = slice(WHOLE_REPLAYED if self.candidates is None else REPLAYED)
        found = rk.Selection(*(torch.as_tensor(field)[count].cpu() for field in result))
        if self.candidates is None:
            return self.arguments(count, host=True), rk.Selection(*map(np.asarray, found))
        named, places = torch.unique(self.candidates[count], return_inverse=True)
        arguments = {
            "queries": self.queries[count].cpu(),
            "embeddings": self.rows[named].cpu(),
            "candidates": places.cpu(),
            "k": self.shape.K,
            "metric": "dot",
        }
        named = named.cpu()
        picks = torch.searchsorted(named, found.indices.to(named.dtype)).clamp(max=len(named) - 1)
        assert (named[picks] == found.indices).all(), "a pick is in no pool"
        return arguments, rk.Selection(*map(np.asarray, found._replace(indices=picks)))


def picks_of(result: Any) -> np.ndarray:
    """Return the rows that a Selection has, or that are the result."""
    return np.asarray(torch.as_tensor(result.indices if isinstance(result, tuple) else result).cpu())


def mmr_of_torch(queries: Any, rows: Any, candidates: Any, K: int, lambda_d: float) -> Any:
    """Return the picks of MMR by torch's own ops, a batched product and an arg-max a pick."""
    e = rows[candidates]  # [Q, P, D]
    relevance = torch.bmm(e, queries.to(e.dtype)[:, :, None])[:, :, 0].float()  # [Q, P]
    most = torch.full_like(relevance, -torch.inf)
    w, picks = relevance, []
    for step in range(K):
        pick = w.argmax(1, keepdim=True)  # [Q, 1]
        picks.append(pick)
        relevance = relevance.scatter(1, pick, -torch.inf)
        if step + 1 < K:
            chosen = e.gather(1, pick[:, :, None].expand(-1, 1, e.shape[2]))  # [Q, 1, D]
            most = torch.maximum(most, torch.bmm(e, chosen.transpose(1, 2))[:, :, 0].float())
            w = lambda_d * relevance - (1 - lambda_d) * most
    return candidates.gather(1, torch.cat(picks, 1))


def of_pools(problem: Problem, backends: tuple[str, ...]) -> Iterator[Contender]:
    """Return all that is timed for picks out of pools or the whole corpus."""
    shape = problem.shape
    arguments, op = problem.arguments(), getattr(rk, shape.op)
    for backend in backends:
        yield Contender(OURS, partial(op, **arguments, backend=backend), backend=backend, picks=picks_of)
    candidates = problem.candidates
    if shape.op == "mmr" and candidates is not None:
        given = (problem.queries, problem.rows, candidates, shape.K, 0.75)
        yield Contender(COMPOSITE, lambda: mmr_of_torch(*given), picks=picks_of, note="gathers the pools")
        yield Contender(COMPILED, lambda: compiled(mmr_of_torch)(*given), picks=picks_of, note="of the same")
    on_cpu = partial(op, **problem.arguments(host=True), backend="cpu")
    yield Contender(CPU, on_cpu, backend="cpu", on_host=True, picks=picks_of, note="all cores")


def of_search(problem: Problem, backends: tuple[str, ...]) -> Iterator[Contender]:
    """Return all that is timed for a search."""
    shape = problem.shape
    corpus = rk.Corpus(problem.rows, metric="dot", dtype=shape.dtype)
    host = rk.Corpus(problem.rows.cpu(), metric="dot", dtype=shape.dtype)
    on_host = problem.queries.cpu()
    yield Contender(OURS, lambda: corpus.search(problem.queries, shape.K), backend=backends[0])
    rounded = problem.queries.to(problem.rows.dtype)
    yield Contender(COMPOSITE, lambda: (rounded @ problem.rows.T).topk(shape.K), note="product and topk")
    on_cpu = partial(host.search, on_host, shape.K)
    yield Contender(CPU, on_cpu, backend="cpu", on_host=True, note="all cores")
