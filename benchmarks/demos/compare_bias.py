"""The quality bias of real pairs by SmolLM2-135M, against making all logits: agreement, pairs a second, peak memory.

Each way runs in a process of its own, forked after the model was loaded, with one thread; memory is the most that the
process needs above what it has when it starts. Ways:

    ours        `quality_bias`: prompts shared, hidden states of answer rows only, no logits
    one by one  one pass a pair, log_softmax of all its logits (as TruthfulQA's code)
    batched     the same in padded batches of 16 pairs

Needs what bias.py needs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks.harness import data, memory
from benchmarks.harness.race import processor
from ragsys_kernels.icl import HuggingFaceModel, quality_bias
from ragsys_kernels.icl.quality import TEMPLATE, prompt_of
from ragsys_kernels.icl.tokenization import encode_pairs

BATCH = 16
TOLERANCE = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=500, help="pairs to score in each way (%(default)s)")
    parser.add_argument("--checked", type=int, default=200, help="answers whose tokens are compared (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [(question, answer) for question, answers in data.truthfulqa() for answer in answers]
    questions, answers = map(list, zip(*rows[: options.pairs], strict=True))
    start = time.perf_counter()
    model = HuggingFaceModel.from_pretrained("smollm2", num_threads=1)
    print(f"SmolLM2-135M, float32, one thread; loaded in {time.perf_counter() - start:.0f} s", flush=True)

    check(model, questions[: options.checked], answers[: options.checked])
    ways: dict[str, Callable[[], np.ndarray]] = {
        "ours": lambda: quality_bias(model, questions, answers),
        "one by one": lambda: full_logits(model, questions, answers, 1),
        "batched": lambda: full_logits(model, questions, answers, BATCH),
    }
    results = {}
    for name, way in ways.items():
        results[name] = measured(way)
        seconds, wall, megabytes, bias = results[name]
        apart = np.abs(bias - results["ours"][3]).max()
        print(
            f"{name:10}: {len(questions)} pairs, {len(questions) / seconds:6.2f} pairs/CPU s ({wall:.0f} s wall, "
            f"{seconds / results['ours'][0]:.2f}x ours), peak memory {megabytes:6.0f} MB "
            f"({megabytes / results['ours'][2]:.1f}x ours), bias within {apart:.1e}",
            flush=True,
        )


def check(model: HuggingFaceModel, questions: list[str], answers: list[str]) -> None:
    """Compare every answer token with log_softmax over the model's own logits, one pair at a time."""
    prompt = prompt_of("compare", TEMPLATE)
    prompts = [prompt.replace("{question}", question) for question in questions]
    scores = model.score(prompts, answers)
    worst = 0.0
    pairs = encode_pairs("compare", model.tokenizer, prompts, answers)
    with torch.inference_mode():
        for a, (context, answer) in enumerate(pairs):
            ids = torch.tensor([[*context, *answer]])
            logp = torch.log_softmax(model.model(ids, use_cache=False).logits[0].double(), -1)
            expected = logp[range(len(context) - 1, ids.shape[1] - 1), list(answer)].numpy()
            found = scores.logp[scores.cu_answers[a] : scores.cu_answers[a + 1]]
            worst = max(worst, float(np.abs(found - expected).max()))
    print(
        f"{len(pairs)} answers, {len(scores.logp)} tokens: within {worst:.1e} of log_softmax of all logits", flush=True
    )
    if worst > TOLERANCE:
        raise SystemExit(f"error: more than {TOLERANCE} apart")


def full_logits(model: HuggingFaceModel, questions: list[str], answers: list[str], batch: int) -> np.ndarray:
    prompt = prompt_of("compare", TEMPLATE)
    pairs = encode_pairs("compare", model.tokenizer, [prompt.replace("{question}", q) for q in questions], answers)
    order = sorted(range(len(pairs)), key=lambda i: -sum(map(len, pairs[i])))  # pairs of like length in a batch
    bias = np.empty(len(pairs), np.float32)
    with torch.inference_mode():
        for begin in range(0, len(order), batch):
            some = order[begin : begin + batch]
            tokens = [[*pairs[i].context, *pairs[i].answer] for i in some]
            ids = torch.zeros(len(some), max(map(len, tokens)), dtype=torch.long)
            mask = torch.zeros_like(ids)
            for r, row in enumerate(tokens):
                ids[r, : len(row)], mask[r, : len(row)] = torch.tensor(row), 1
            logp = torch.log_softmax(model.model(ids, attention_mask=mask, use_cache=False).logits[:, :-1], -1)
            logp = logp.gather(2, ids[:, 1:, None])[..., 0]
            for r, i in enumerate(some):
                first, last = len(pairs[i].context) - 1, len(tokens[r]) - 1
                bias[i] = logp[r, first:last].mean()
    return bias


def measured(way: Callable[[], np.ndarray]) -> tuple[float, float, float, np.ndarray]:
    """Return CPU seconds, seconds, peak megabytes and result of a call in a child process."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        ctypes.CDLL(None).malloc_trim(0)  # return what loading freed: growth into it would not be seen
        memory.reset()
        before = memory.now()
        results: list[np.ndarray] = []
        seconds, processor_seconds = processor(lambda: results.append(way()))
        megabytes = (memory.peak() - before) / 2**20
        with os.fdopen(writer, "w") as pipe:
            json.dump([processor_seconds, seconds, megabytes, results[0].tolist()], pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    if os.waitpid(child, 0)[1]:
        raise SystemExit("error: a way failed")
    seconds, wall, megabytes, bias = json.loads(text)
    return seconds, wall, megabytes, np.array(bias)


if __name__ == "__main__":
    main()
