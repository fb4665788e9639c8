"""The problems of selection on a GPU, and who is timed on them: the library there and on the CPU, torch's own ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import torch

import ragsys_kernels as rk
from benchmarks.gpu.forms import GRAM, TORCH
from benchmarks.gpu.shapes import LAMBDA_D, STREAMED, Pools
from benchmarks.harness import gate
from benchmarks.harness.contender import OURS, PRODUCT, Contender
from benchmarks.suites.scoring import compiled
from benchmarks.suites.scoring_shapes import COMPILED
from ragsys_kernels import testing

COMPOSITE, CPU = TORCH, f"{OURS} on the CPU"
CORPUS = f"{OURS}, over a Corpus"
LOOP = "torch, a query at a time"
LOOPED = 64  # queries of that loop, a part of the work
_ROWS_AT_A_TIME, _QUERIES_AT_A_TIME = 1 << 18, 64  # of what makes a problem
REPLAYED, WHOLE_REPLAYED = 8, 2  # queries whose picks are replayed in float64: of pools, of the whole corpus
TOLERANCE = 1e-5  # of values of the whole corpus


class Problem:
    """Unit rows in clusters of clusters, queries among them, and pools; all made where they are used.

    Pools that are kept on chip are random rows: what is done there does not depend on them. Larger ones, where bounds
    decide which rows are read, are the rows nearest to the query, as a search finds them.
    """

    def __init__(self, shape: Pools, device: Any) -> None:
        self.shape, self.dtype = shape, shape.dtype
        generator = torch.Generator(device=device).manual_seed(0)

        def near(centres: Any, count: int, distance: float) -> Any:
            x = centres[torch.randint(len(centres), (count,), generator=generator, device=device)]
            return x + distance * torch.randn((count, shape.D), generator=generator, device=device)

        centres = near(near(torch.zeros((1, shape.D), device=device), 50, 1.0), 2 + shape.N // 100, 1.0)

        def vectors(count: int, dtype: Any) -> Any:
            made = torch.empty((count, shape.D), dtype=dtype, device=device)
            for part in made.split(_ROWS_AT_A_TIME):
                x = near(centres, len(part), 0.7)
                part.copy_(x / x.norm(dim=1, keepdim=True))
            return made

        self.rows = vectors(shape.N, getattr(torch, shape.dtype))
        self.queries = vectors(shape.Q, torch.float32)
        self.candidates = None
        if shape.regime == STREAMED:
            parts = self.queries.to(self.rows.dtype).split(_QUERIES_AT_A_TIME)
            self.candidates = torch.cat([(part @ self.rows.T).topk(shape.P).indices for part in parts])
        elif shape.P is not None:
            # Distinct and random without sorting: N is a prime, so multiples of a number below it are N different ones.
            first, step = (
                torch.randint(low, shape.N, (shape.Q, 1), generator=generator, device=device) for low in (0, 1)
            )
            self.candidates = (first + step * torch.arange(shape.P, device=device)) % shape.N

    @cached_property
    def corpus(self) -> rk.Corpus:
        """The rows as a corpus stores them: unit vectors, rounded once more."""
        return rk.Corpus(self.rows, dtype=self.shape.dtype)

    @property
    def inputs(self) -> list[Any]:
        """What a contender may read and must not change."""
        return [x for x in (self.rows, self.queries, self.candidates) if x is not None]

    @property
    def bytes(self) -> int:
        """Bytes of one read of every pool."""
        rows = self.shape.N if self.candidates is None else self.candidates.numel()
        return rows * self.shape.D * self.rows.element_size()

    @property
    def floor_bytes(self) -> int:
        """Return the bytes of the rows that the last-level cache cannot serve: nothing can be done with less.

        Queries run about in their order. Of as many as have pools that fill the cache, a row counts once, however many
        of them name it; the next ones find it overwritten.
        """
        if self.candidates is None:
            return self.bytes
        row, rows = self.shape.D * self.rows.element_size(), 0
        named = torch.zeros(self.shape.N, dtype=torch.bool, device=self.rows.device)
        for pools in self.candidates.split(max(1, cache_bytes(self.rows.device) // (self.candidates.shape[1] * row))):
            named.zero_()[pools.flatten()] = True
            rows += int(named.sum())
        return rows * row

    @property
    def flops(self) -> float:
        """Flops of the plain rule: products with the query and with all picks but the last."""
        rows = self.shape.Q * (self.shape.P or self.shape.N)
        return 2.0 * rows * self.shape.D * (1 if self.shape.op == "search" else self.shape.K)

    def arguments(self, queries: slice = slice(None), host: bool = False) -> dict[str, Any]:
        """Return the arguments of the library's call; "dot" of unit vectors gives cosines, and nothing is scaled."""
        moved = {"queries": self.queries[queries], "embeddings": self.rows}
        if self.candidates is not None:
            moved["candidates"] = self.candidates[queries]
        return {**{name: x.cpu() if host else x for name, x in moved.items()}, "k": self.shape.K, **self.options}

    @property
    def options(self) -> dict[str, Any]:
        """Return what is not an array; the library's own default is not given."""
        weight = {} if self.shape.lambda_d == LAMBDA_D else {"lambda_d": self.shape.lambda_d}
        return {"metric": "dot", **weight}

    def check(self, contender: Contender, result: Any) -> np.ndarray | None:
        """Assert that a result is right; return its picks, if it has any."""
        if self.shape.op == "search":
            if is_ours(contender.name) or contender.name == CPU:
                cosines = np.asarray((self.queries[:REPLAYED].double() @ self.rows.double().T).cpu())
                gate.nearest(contender.name, cosines, np.asarray(torch.as_tensor(result[0])[:REPLAYED].cpu()))
            return None
        if is_ours(contender.name) and self.candidates is None:
            self._check_whole(result, contender.name == CORPUS)
        elif is_ours(contender.name):
            testing.check_selection(self.shape.op, *self._replayed(result))
        return None if contender.picks is None else contender.picks(result)

    def _check_whole(self, result: Any, stored: bool) -> None:
        """Assert that each pick of few queries is the best of all rows given the picks before it, in float64.

        Where the rows are: on the processor a replay of millions of rows takes minutes.
        """

        def products(vector: Any) -> Any:
            begins = range(0, self.shape.N, _ROWS_AT_A_TIME)
            return torch.cat([self._rows_from(begin, stored) @ vector for begin in begins])

        for q in range(min(WHOLE_REPLAYED, self.shape.Q)):
            value = products(self.queries[q].double())
            nearest, taken = torch.full_like(value, -torch.inf), torch.zeros_like(value, dtype=torch.bool)
            weight = self.shape.lambda_d
            picks = [int(row) for row in torch.as_tensor(result.indices)[q]]
            assert len(set(picks)) == self.shape.K, f"query {q}: picks must be distinct, got {picks}"
            for step, row in enumerate(picks):
                w = weight * value - (1 - weight) * nearest if step else value
                own, best = float(w[row]), float(w.masked_fill(taken, -torch.inf).max())
                assert own >= best - TOLERANCE, f"query {q}, step {step}: row {row} has {own}, the best {best}"
                score = float(torch.as_tensor(result.scores)[q, step])
                expected = own if step else weight * own
                assert abs(score - expected) <= TOLERANCE, f"query {q}, step {step}: score {score}, expected {expected}"
                taken[row] = True
                nearest = torch.maximum(nearest, products(self._rows_from(row, stored, 1)[0]))

    def _rows_from(self, first: int, stored: bool, count: int = _ROWS_AT_A_TIME) -> Any:
        """Return rows from ``first`` on in float64; ``stored``: as the corpus has them."""
        part = slice(first, first + count)
        return self._stored(part).double() if stored else self.rows[part].double()

    def _replayed(self, result: Any) -> tuple[dict[str, Any], rk.Selection]:
        """Return arguments and result of few queries on the host, with no rows but those that their pools name."""
        count = slice(REPLAYED)
        found = rk.Selection(*(torch.as_tensor(field)[count].cpu() for field in result))
        named, places = torch.unique(self.candidates[count], return_inverse=True)
        arguments = {
            "queries": self.queries[count].cpu(),
            "embeddings": self.rows[named].cpu(),
            "candidates": places.cpu(),
            "k": self.shape.K,
            **self.options,
        }
        named = named.cpu()
        picks = torch.searchsorted(named, found.indices.to(named.dtype)).clamp(max=len(named) - 1)
        assert (named[picks] == found.indices).all(), "a pick is in no pool"
        return arguments, rk.Selection(*map(np.asarray, found._replace(indices=picks)))

    def _stored(self, rows: Any = slice(None)) -> Any:
        """Return rows of the corpus as it holds them, unit vectors of float32."""
        held, scales = torch.as_tensor(self.corpus.data)[rows].float(), self.corpus.scales
        return held if scales is None else held * torch.as_tensor(scales)[rows][:, None]


def cache_bytes(device: Any) -> int:
    """Return the bytes of a device's last-level cache; where it does not say, those of an H100."""
    known = torch.cuda.get_device_properties(device) if torch.device(device).type == "cuda" else None
    return int(getattr(known, "L2_cache_size", 0)) or 50 << 20


def picks_of(result: Any) -> np.ndarray:
    """Return the rows that a Selection has, or that are the result."""
    return np.asarray(torch.as_tensor(result.indices if isinstance(result, tuple) else result).cpu())


def is_ours(name: str) -> bool:
    """Return whether a contender is the library on the device, under any variant of its kernels."""
    return name.partition(", ")[0] == OURS


def mmr_of_torch(queries: Any, rows: Any, candidates: Any, K: int, lambda_d: float) -> Any:
    """Return the picks of MMR by torch's own ops, a batched product and an arg-max a pick."""
    e = rows[candidates]  # [Q, P, D]
    relevance = torch.bmm(e, queries.to(e.dtype)[:, :, None])[:, :, 0].float()  # [Q, P]

    def similarities(pick: Any) -> Any:
        chosen = e.gather(1, pick[:, :, None].expand(-1, 1, e.shape[2]))  # [Q, 1, D]
        return torch.bmm(e, chosen.transpose(1, 2))[:, :, 0].float()

    return candidates.gather(1, _greedy(relevance, similarities, K, lambda_d))


def mmr_of_gram(queries: Any, rows: Any, candidates: Any, K: int, lambda_d: float) -> Any:
    """Return the same picks from one batched product of the pools with themselves."""
    e = rows[candidates]
    relevance = torch.bmm(e, queries.to(e.dtype)[:, :, None])[:, :, 0].float()
    gram = torch.bmm(e, e.transpose(1, 2))  # [Q, P, P]

    def similarities(pick: Any) -> Any:
        return gram.gather(1, pick[:, :, None].expand(-1, 1, gram.shape[2]))[:, 0].float()

    return candidates.gather(1, _greedy(relevance, similarities, K, lambda_d))


def mmr_of_corpus(queries: Any, rows: Any, K: int, lambda_d: float) -> Any:
    """Return the picks of MMR out of all rows, by a product with the corpus a pick."""
    relevance = (queries.to(rows.dtype) @ rows.T).float()  # [Q, N]
    return _greedy(relevance, lambda pick: (rows[pick[:, 0]] @ rows.T).float(), K, lambda_d)


def _greedy(relevance: Any, similarities: Callable[[Any], Any], K: int, lambda_d: float) -> Any:
    """Return the positions that MMR picks, (Q, K); ``similarities`` are those to a pick (Q, 1)."""
    most = torch.full_like(relevance, -torch.inf)
    w, picks = relevance, []
    for step in range(K):
        pick = w.argmax(1, keepdim=True)
        picks.append(pick)
        relevance = relevance.scatter(1, pick, -torch.inf)
        if step + 1 < K:
            most = torch.maximum(most, similarities(pick))
            w = lambda_d * relevance - (1 - lambda_d) * most
    return torch.cat(picks, 1)


def vrsd_of_torch(queries: Any, rows: Any, candidates: Any, K: int) -> Any:
    """Return the picks of VRSD for unit rows by torch's own ops, a batched product and an arg-max a pick."""
    e = rows[candidates]
    relevance = torch.bmm(e, queries.to(e.dtype)[:, :, None])[:, :, 0].float()  # [Q, P]
    total = torch.zeros_like(e[:, :1])  # [Q, 1, D]
    w, picks = relevance, []
    for step in range(K):
        pick = w.argmax(1, keepdim=True)
        picks.append(pick)
        relevance = relevance.scatter(1, pick, -torch.inf)
        if step + 1 < K:
            total = total + e.gather(1, pick[:, :, None].expand(-1, 1, e.shape[2]))
            along = torch.bmm(e, total.transpose(1, 2))[:, :, 0].float()  # t = s·e
            s = total[:, 0].float()
            square = (s * s).sum(1, keepdim=True) + 2 * along + 1
            w = ((s * queries).sum(1, keepdim=True) + relevance) / square.sqrt()
    return candidates.gather(1, torch.cat(picks, 1))


def of_pools(problem: Problem, backends: tuple[str, ...]) -> Iterator[Contender]:
    """Return all that is timed for picks out of pools or the whole corpus."""
    shape = problem.shape
    arguments, op = problem.arguments(), getattr(rk, shape.op)
    for backend in backends:
        yield Contender(OURS, partial(op, **arguments, backend=backend), backend=backend, picks=picks_of)
    if shape.op == "mmr" and problem.candidates is None and "triton" in backends:
        weight = {"lambda_d": shape.lambda_d}
        over_corpus = partial(rk.mmr, problem.queries, problem.corpus, shape.K, backend="triton", **weight)
        yield Contender(CORPUS, over_corpus, backend="triton", picks=picks_of)
    yield from _of_torch(problem)
    host = cache(lambda: problem.arguments(host=True))  # moved when it is first needed

    def on_cpu() -> Any:
        return op(**host(), backend="cpu")

    yield Contender(CPU, on_cpu, backend="cpu", on_host=True, picks=picks_of, note="all cores")


def _of_torch(problem: Problem) -> Iterator[Contender]:
    """Return torch's own ops in their strongest plain forms, and a loop over queries as many write it."""
    shape, candidates = problem.shape, problem.candidates
    common = (problem.queries, problem.rows)
    if shape.op == "msd":  # of which nobody wrote one
        return
    if shape.op == "vrsd":
        if candidates is not None:
            yield from _eager_and_compiled(vrsd_of_torch, COMPOSITE, (*common, candidates, shape.K))
    elif candidates is None:
        yield from _eager_and_compiled(mmr_of_corpus, COMPOSITE, (*common, shape.K, shape.lambda_d))
        yield Contender(PRODUCT, lambda: problem.queries.to(problem.rows.dtype) @ problem.rows.T, note="no picks")
    else:
        given = (*common, candidates, shape.K, shape.lambda_d)
        yield from _eager_and_compiled(mmr_of_torch, COMPOSITE, given)
        if candidates.shape[1] <= 128:  # larger matrices are more bytes than the pools
            yield from _eager_and_compiled(mmr_of_gram, GRAM, given)
        looped = min(LOOPED, shape.Q)

        def loop() -> Any:
            one = partial(mmr_of_torch, rows=problem.rows, K=shape.K, lambda_d=shape.lambda_d)
            picks = [one(problem.queries[q : q + 1], candidates=candidates[q : q + 1]) for q in range(looped)]
            return torch.cat(picks)

        yield Contender(LOOP, loop, share=looped / shape.Q, picks=picks_of, note=f"of {looped} queries")


def _eager_and_compiled(function: Callable[..., Any], name: str, given: tuple[Any, ...]) -> Iterator[Contender]:
    yield Contender(name, lambda: function(*given), picks=picks_of)
    compiled_name = COMPILED if name == COMPOSITE else f"{name}, {COMPILED}"
    yield Contender(compiled_name, lambda: compiled(function)(*given), picks=picks_of, note="of the same")


def of_search(problem: Problem, backends: tuple[str, ...]) -> Iterator[Contender]:
    """Return all that is timed for a search."""
    shape = problem.shape
    corpus = rk.Corpus(problem.rows, metric="dot", dtype=shape.dtype)
    host = cache(lambda: (rk.Corpus(problem.rows.cpu(), metric="dot", dtype=shape.dtype), problem.queries.cpu()))
    yield Contender(OURS, lambda: corpus.search(problem.queries, shape.K), backend=backends[0])
    rounded = problem.queries.to(problem.rows.dtype)
    yield Contender(COMPOSITE, lambda: (rounded @ problem.rows.T).topk(shape.K), note="product and topk")
    yield Contender(PRODUCT, lambda: rounded @ problem.rows.T, note="no top-k")

    def on_cpu() -> Any:
        rows, queries = host()
        return rows.search(queries, shape.K)

    yield Contender(CPU, on_cpu, backend="cpu", on_host=True, note="all cores")
