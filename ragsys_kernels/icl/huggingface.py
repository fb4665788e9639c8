"""Causal language models of Hugging Face transformers as a `LanguageModel`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

import ragsys_kernels as rk

from .._base.checks import count
from .._base.extras import install, missing
from .._base.types import PathLike
from .forward.loading import adapters, add_tensor, configuration, load
from .forward.network import Network, State, most_rows, selected
from .forward.sharing import Cluster, Group, Tokens, batches, clustered, grouped
from .language_model import NOTHING, PairError, Part, Scores, TopTokens, paired
from .runtime import quiet_transformers
from .tokenization import TokenPair, encode_pairs, token_pairs, trims, vocabulary

# Makes something of each of a batch's answers, of hidden states and of their rows, end to end, that predict its tokens.
_Read = Callable[[Any, Any, list[Tokens]], Iterable[Any]]

_ROOM = "prompts must leave room for the continuation"


class _Task(NamedTuple):
    """An answer to score after `rest`, which continues row `owner` of a state; without a state it is the context."""

    owner: int
    rest: Tokens
    answer: Tokens
    places: list[int]

    @property
    def fed(self) -> Tokens:
        return self.rest + self.answer[:-1]


class HuggingFaceModel:
    """A causal language model of transformers, scored without making its logits.

    Answers to one prompt share the run of the prompt, and prompts that begin alike that of their beginning: keys and
    values are computed once and repeated for what follows. The output layer is not run by the model;
    `ragsys_kernels.answer_logprobs` takes the hidden states of the rows that predict answer tokens, and the layer's
    weight.

    Parameters
    ----------
    model : transformers.PreTrainedModel or peft.PeftModel
        With a linear output layer; a logit scale and a soft cap are read from its configuration.
    tokenizer : transformers.PreTrainedTokenizerBase
    batch_tokens : int
        Most tokens in one forward pass, padding included; one longer text runs alone. Keys and values are held for
        eight times as many.
    share_prompts : bool
        False runs the prompt again for every answer: slower, the same scores up to rounding (1e-4 in float32). So it
        is for models with a recurrent state, and for those of which a few runs at the start show that padding or keys
        and values that are repeated would change scores (MPT, decoders of the BART family). Where padding alone does,
        texts of one length run together.
    backend, num_threads
        Options of `ragsys_kernels.answer_logprobs`; torch has its own threads.

    Raises
    ------
    ValueError
        The output layer computes something else than ``softcap(scale * (hidden @ weight.T + bias))``; a model that is
        not causal, as its hidden states change with later tokens; logits that are not finite.
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
        self.network = Network(self.model, share_prompts)
        self.share_prompts = self.network.keeps
        self.scoring = {**self.network.head.options, "backend": backend, "num_threads": num_threads}  # of the ops

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
            "smollm2" or "gemma3" for the models that packages carry, see `packaged.find`; a name on the Hugging Face
            hub; a folder; or a ``.gguf`` file (a folder that holds only one will do).
        dtype : {"float32", "float16", "bfloat16"}
            How the weights are held in memory.
        cache : path, optional
            Folder in which the weights of a ``.gguf`` file are kept unpacked, for each dtype: SmolLM2-135M loads in
            0.6 s from there instead of 50 s. Default: none for a file that is given; `packaged.find`'s for a name.
        **options
            Other parameters of the class.

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
        """Hash of configuration, all weights and the tokenizer; made once, in about a second a gigabyte."""
        digest = hashlib.blake2b(digest_size=20)
        digest.update(f"{type(self.model).__name__} {configuration(self.model.config)}{adapters(self.model)}".encode())
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        kept = [one for one in self.model.state_dict().items() if one[0] not in parameters]  # buffers that are saved
        for name, tensor in (*self.model.named_parameters(), *kept):
            add_tensor(digest, name, tensor)
        # Before, padding could take the place of tokens in a window, or move the tokens of models that count it, and
        # characters could be left out where positions are trimmed: scores that were kept may be wrong.
        mended = {b"2": self.network.window is not None, b"3": self.network.uneven, b"4": trims(self.tokenizer)}
        digest.update(b"".join(mark for mark, holds in mended.items() if holds))
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
        pairs = encode_pairs(op, self.tokenizer, *paired(op, prompts, continuations))
        return self._score_pairs(pairs, op, _ROOM)

    def score_tokens(
        self,
        contexts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        *,
        progress: Callable[[list[int], Part], object] | None = None,
    ) -> Scores:
        """Score the tokens answers[a] after the tokens contexts[a], as `score` does after its tokenizer.

        Parameters
        ----------
        contexts, answers : A sequences of token ids
            A context has at least one token, unless its answer has none. Nothing is added to them, BOS included.
        progress : callable, optional
            Called with the positions of pairs that have just been scored, equal ones together, and their result.

        Raises
        ------
        PairError
            A pair longer than the model's context, or an answer after nothing.
        ValueError, TypeError
            Unequal numbers of contexts and answers; something that is not a token of the model.
        """
        op = "score_tokens"
        pairs = token_pairs(op, contexts, answers, len(self.network.head.weight))
        return self._score_pairs(pairs, op, "contexts must leave room for the answer", progress)

    def top_logprobs(self, prompts: Sequence[str], continuations: Sequence[str], *, k: int) -> TopTokens:
        """Return what the model holds for most probable at each token of continuations[a] after prompts[a].

        `ragsys_kernels.top_logprobs` takes the hidden states, so that logits are never made. Continuations are those of
        texts to learn from, or of the model itself; prompts share their work as in `score`.

        Parameters
        ----------
        k : int
            Tokens a place, at least 1.

        Raises
        ------
        PairError, ValueError, TypeError
            As `score`.
        """
        op = "top_logprobs"
        k = count(op, "k", k)
        pairs = encode_pairs(op, self.tokenizer, *paired(op, prompts, continuations))
        ids = [np.zeros((len(answer), k), np.int64) for _, answer in pairs]
        log_probs = [np.zeros((len(answer), k), np.float32) for _, answer in pairs]

        def read(hidden: Any, rows: Any, answers: list[Tokens]) -> Iterator[Any]:
            top = rk.top_logprobs(
                hidden=self.network.head.takes(hidden), rows=self.network.tensor(rows), k=k, **self.scoring
            )
            ends = np.cumsum([len(answer) for answer in answers])[:-1]
            return zip(*(np.split(np.asarray(x.cpu()), ends) for x in top), strict=True)

        with self.network.torch.inference_mode():
            for task, (best, logp) in self._read_pairs(pairs, op, _ROOM, read):
                for i in task.places:
                    ids[i], log_probs[i] = best, logp
        tokens = [np.array(answer, np.int64) for _, answer in pairs]
        return TopTokens(
            tokens=np.concatenate([np.zeros(0, np.int64), *tokens]),
            ids=np.concatenate([np.zeros((0, k), np.int64), *ids]),
            log_probs=np.concatenate([np.zeros((0, k), np.float32), *log_probs]),
            cu_answers=np.cumsum([0, *map(len, tokens)]),
        )

    def _score_pairs(
        self,
        pairs: Sequence[TokenPair],
        op: str,
        rule: str,
        progress: Callable[[list[int], Part], object] | None = None,
    ) -> Scores:
        parts = [NOTHING] * len(pairs)
        empty = [i for i, (_, answer) in enumerate(pairs) if not answer]
        read = self._read_pairs(pairs, op, rule, self._score_rows)
        if empty and progress is not None:
            progress(empty, NOTHING)
        with self.network.torch.inference_mode():
            for task, part in read:
                for i in task.places:
                    parts[i] = part
                if progress is not None:
                    progress(task.places, part)
        return Scores.of(parts)

    def _read_pairs(self, pairs: Sequence[TokenPair], op: str, rule: str, read: _Read) -> Iterator[tuple[_Task, Any]]:
        """Check the pairs, and yield what ``read`` makes of the rows of every answer that is not empty."""
        limit = self.network.limit
        for i, (context, answer) in enumerate(pairs):
            if limit is not None and answer and len(context) + len(answer) - 1 > limit:
                got = f"got {len(context)} and {len(answer)} tokens"
                raise PairError(op, f"{rule} in the model's context of {limit} tokens, {got}", i)
        return self._run(grouped(pairs), read)

    def _run(self, groups: list[Group], read: _Read) -> Iterator[tuple[_Task, Any]]:
        """Read every answer: single answers to contexts of their own in one pass, others after what they share."""
        whole: list[_Task] = []
        sharing: list[Cluster] = []
        for cluster in clustered(groups) if self.share_prompts else [Cluster((), [group]) for group in groups]:
            answers = [(group.context, *pair) for group in cluster.groups for pair in _answers(group)]
            if len(answers) > 1 and self.share_prompts:
                sharing.append(cluster)
            else:
                whole += [_Task(0, *answer) for answer in answers]
        yield from self._read_tasks(whole, read)
        for batch in batches(sharing, lambda cluster: len(cluster.beginning), self.batch_tokens):
            yield from self._run_sharing(batch, read)

    def _run_sharing(self, clusters: list[Cluster], read: _Read) -> Iterator[tuple[_Task, Any]]:
        """Read the beginnings of clusters; then the rest of contexts with several answers; then all answers."""
        state = self.network.read([cluster.beginning for cluster in clusters])
        tasks: list[_Task] = []
        branching: list[tuple[int, Tokens, Group]] = []
        for owner, (beginning, groups) in enumerate(clusters):
            for group in groups:
                rest = group.context[len(beginning) :]
                if rest and len(group.answers) > 1:
                    branching.append((owner, rest, group))
                else:
                    tasks += [_Task(owner, rest, *pair) for pair in _answers(group)]
        yield from self._read_tasks(tasks, read, state)
        width, window = int(state.mask.shape[1]), self.network.window
        longest = max((len(rest) + max(map(len, group.answers)) for _, rest, group in branching), default=0)
        padded = window is None or width + longest <= window
        rows = most_rows(self.batch_tokens, width)
        for some in batches(branching, lambda branch: len(branch[1]), self.batch_tokens, rows, padded=padded):
            rests = self.network.read([rest for _, rest, _ in some], state, [owner for owner, _, _ in some])
            answers = [_Task(row, (), *pair) for row, (_, _, group) in enumerate(some) for pair in _answers(group)]
            yield from self._read_tasks(answers, read, rests)

    def _read_tasks(self, tasks: list[_Task], read: _Read, state: State | None = None) -> Iterator[tuple[_Task, Any]]:
        """Read answers after their state, padded on the right, where no real token can see."""
        rows = None if state is None else most_rows(self.batch_tokens, int(state.mask.shape[1]))
        padded = "right" in self.network.pads
        for batch in batches(tasks, lambda task: len(task.fed), self.batch_tokens, rows, padded=padded):
            yield from zip(batch, self._read_batch(batch, read, state), strict=True)

    def _read_batch(self, batch: list[_Task], read: _Read, state: State | None) -> Iterable[Any]:
        network, torch = self.network, self.network.torch
        fed = [task.fed for task in batch]
        owners = network.tensor([task.owner for task in batch])
        states = [] if state is None else [state.last]
        if any(fed):
            ids, mask = network.padded(fed, "right")
            if state is None:
                output = network.forward(ids, mask, use_cache=False)
            else:
                before = state.mask[owners]
                positions = before.sum(1, keepdim=True) + torch.arange(ids.shape[1], device=network.device)
                both = torch.cat([before, mask], dim=1)
                cache = selected(state.cache, owners)
                output = network.forward(ids, both, positions, past_key_values=cache, use_cache=True)
            states.append(output.last_hidden_state[mask.bool()])
        # Rows of the answers in these states, end to end. A first token is predicted by the last token of the rest, or
        # of the state without a rest, which its answers share.
        ends = (0 if state is None else len(state.last)) + np.cumsum(list(map(len, fed)))
        rows = [
            [*range(end - len(task.answer), end)] if task.rest else [task.owner, *range(end - len(task.fed), end)]
            for task, end in zip(batch, ends, strict=True)
        ]
        return read(torch.cat(states), np.concatenate(rows), [task.answer for task in batch])

    def _score_rows(self, hidden: Any, rows: Any, answers: list[tuple[int, ...]]) -> list[Part]:
        tokens = [np.array(answer, np.int64) for answer in answers]
        place = self.network.tensor
        scores = rk.answer_logprobs(
            hidden=self.network.head.takes(hidden),
            targets=place(np.concatenate(tokens)),
            rows=place(rows),
            cu_answers=place(np.cumsum([0, *map(len, answers)])),
            reduce=("greedy",),
            **self.scoring,
        )
        ends = np.cumsum([len(answer) for answer in answers])[:-1]
        greedy = np.asarray(scores.greedy.cpu())
        logp = np.split(np.asarray(scores.logp.cpu()), ends)
        return [Part(*fields) for fields in zip(tokens, logp, map(bool, greedy), strict=True)]


def _answers(group: Group) -> Iterator[tuple[Tokens, list[int]]]:
    return zip(group.answers, group.places, strict=True)


def open_model(op: str, model: PathLike, **options: Any) -> HuggingFaceModel:
    """Load as `HuggingFaceModel.from_pretrained`, without what transformers prints and with one line for each error."""
    with quiet_transformers():
        try:
            return HuggingFaceModel.from_pretrained(model, **options)
        except ImportError as error:
            if install("lm") in str(error) or "pip install --no-deps" in str(error):  # ours
                raise
            raise missing(op, "the extra lm", f"{install('lm')}: {error}", error.name) from error
        except MemoryError:
            raise
        except Exception as error:  # transformers lets through whatever the reader of a damaged file raises
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
            raise kind(f"{op}: model must be loadable, got {model}: {error}") from error
