"""Options that are no options, tensors that are no arrays, misspelt arguments: one form of error, in every op."""

import inspect
import itertools
import re
import warnings

import numpy as np
import pytest
from operations import OTHERS, SCORING, SELECTION, f32

import ragsys_kernels as rk
from ragsys_kernels.selection.parameters import RECENCY


class Odd:
    """No number, no name, no array."""


ODD = {
    "array": np.ones(3), "array_of_one": np.array(["mmr"]), "object": Odd(), "type": object, "dict": {}, "set": {1},
    "huge": 10**6000, "bytes": b"mmr", "list": ["cosine"], "complex": 1j, "nested": [[1], [2, 3]],
    "generator": iter([]),
}  # fmt: skip
OPERATIONS = SELECTION | SCORING | OTHERS
VARIANTS = ("select_candidates", "answer_logprobs_ids", "answer_logprobs_partials", "top_logprobs_partials")
ARGUMENTS = {name: operation for name, operation in OPERATIONS.items() if name not in VARIANTS} | {
    "Corpus": (rk.Corpus, {"embeddings": f32(12, 4)}),
    "rows_of": (rk.Corpus(f32(12, 4)).rows_of, {"ids": [1]}),
    "merge_partials": (rk.merge_partials, {}),
}
each_operation = pytest.mark.parametrize("op", ARGUMENTS)
WORDED = rf"^({'|'.join(ARGUMENTS)}): (\w+|all arrays|\w+ (and|or) \w+) must "


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
@each_operation
def test_what_is_no_argument_is_refused_in_one_form(op):
    """Whatever is given for any argument: an answer, or an error that names the function and the argument."""
    call, arguments = ARGUMENTS[op]
    for name, odd in itertools.product(inspect.signature(call).parameters, ODD.values()):
        try:
            call(**{**arguments, name: odd})
        except (ValueError, TypeError) as error:
            worded = re.match(WORDED, str(error)) and len(str(error)) < 500
            assert worded, f"{name} {type(odd)}: {error!r:.200}"  # noqa: PT017


@pytest.fixture(scope="module")
def odd_tensors():
    torch = pytest.importorskip("torch")
    plain = torch.ones(12, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "float8": plain.to(torch.float8_e4m3fn),
            "quantised": torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8),
            "meta": plain.to("meta"),
            "sparse": plain.to_sparse(),
            "strides that are none": torch.complex(plain, plain).conj().imag,
        }


@each_operation
def test_tensors_that_are_no_arrays_are_refused_by_name(op, odd_tensors):
    call, arguments = ARGUMENTS[op]
    for name, (kind, tensor) in itertools.product(inspect.signature(call).parameters, odd_tensors.items()):
        try:
            call(**{**arguments, name: tensor})
        except (ValueError, TypeError, rk.BackendUnavailableError) as error:
            worded = re.match(WORDED + "|^\\w+: no backend runs on arrays on 'meta'", str(error))
            assert worded, f"{name} {kind}: {error!r:.200}"  # noqa: PT017


MISSPELT = {
    ("select", "lamda_d"): "; did you mean 'lambda_d'?",
    ("select", "lambda_mult"): "; it is called 'lambda_d' here and takes the same value",
    ("select", "diversity"): "; it is called 'lambda_d' here and takes 1 - diversity",
    ("select", "fetch_k"): "; it is called 'pool' here and takes the same number",
    ("select", "n_results"): "; it is called 'k' here and takes the same number",
    ("select", "querys"): "; did you mean 'queries'?",
    ("select", "zebra"): "",
    ("search", "top_k"): "; it is called 'n' here and takes the same number",
    ("search", "k"): "; it is called 'n' here and takes the same number",
    ("mmr", "fetch_k"): "; it is called 'candidates' here and takes the ids of so many nearest rows",
    ("mmr", "top_k"): "; it is called 'k' here and takes the same number",
    ("vrsd", "lambda_d"): "",
    ("vrsd", "similarity"): "; it is called 'embeddings' here and takes vectors; similarities are for mmr, msd, "
    "dpp and coverage",
    ("search", "filter"): "; it is called 'allowed' here and takes a mask or rows",
    ("subset", "method"): "; it is called 'rule' here and takes the name of a rule of `METHODS`",
    ("subset", "pool"): "",
    ("select", "rule"): "; it is called 'method' here and takes the name of a rule of `METHODS`",
    ("duplicates", "bias"): "; it is called 'quality' here and takes the same values",
    ("mmr", "quality"): "; it is called 'bias' here and takes the same values",
    ("Corpus", "biass"): "; did you mean 'bias'?",
    ("answer_logprobs", "ignore_idx"): "; did you mean 'ignore_index'?",
}


WHOLE = {
    "subset": (rk.Corpus(f32(12, 4)).subset, {"k": 3}),
    "duplicates": (rk.duplicates, {"embeddings": f32(12, 4), "threshold": 0.5}),
}


@pytest.mark.parametrize(("op", "name"), MISSPELT)
def test_a_misspelt_argument_is_answered_with_ours(op, name):
    call, arguments = (ARGUMENTS | WHOLE)[op]
    message = f"{op}: got an unexpected keyword argument {name!r}{MISSPELT[op, name]}"
    for given in (arguments, {key: value for key, value in arguments.items() if key not in ("k", "n")}):
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            call(**given, **{name: 1})


def test_select_has_the_options_of_its_methods_with_their_defaults():
    """Or with None, which is the default of the rule that is asked for."""
    own = inspect.signature(rk.Corpus.select).parameters
    of_rules = {"lambda_d", *(name for method in rk.METHODS.values() for name in method.parameters)} - {"lambda_b"}
    for rule in rk.METHODS:
        for name, parameter in inspect.signature(getattr(rk, rule)).parameters.items():
            # It knows what is outside of its pools, and has vectors.
            if name not in ("queries", "embeddings", "k", "outside", "similarity"):
                assert own[name].default == (None if name in of_rules else parameter.default), name
    mine = {name for name in own if name not in inspect.signature(rk.mmr).parameters}
    assert mine - of_rules == {"self", "method", "pool", "index", *(each.name for each in RECENCY)}
