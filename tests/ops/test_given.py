"""Arrays as people have them, of lists, pandas, polars, Arrow and torch: the answers of NumPy's, or one clear error."""

import warnings

import numpy as np
import pytest
from selection_calls import check_error, same

import ragsys_kernels as rk

N, Q, P, D = 40, 3, 12, 6


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


EMBEDDINGS, QUERIES = normal(0, N, D), normal(1, Q, D)
CANDIDATES = np.argsort(normal(2, Q, N), axis=1)[:, :P]


def of_numpy(x):
    yield "list of arrays", list(x)
    yield "tuple of arrays", tuple(x)
    yield "array of arrays", objects(list(x))
    yield "fortran", np.asfortranarray(x)
    yield "backwards", x[::-1].copy()[::-1]
    yield "columns apart", np.repeat(x, 2, axis=1)[:, ::2]


def of_arrow(x):
    pa = pytest.importorskip("pyarrow")
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), x.shape[1])
    yield "fixed-size lists", fixed
    yield "slice", pa.concat_arrays([fixed[:2], fixed])[2:]
    yield "lists", pa.array(list(x), pa.list_(pa.float32()))
    yield "large lists", pa.array(list(x), pa.large_list(pa.float32()))
    yield "chunks", pa.chunked_array([fixed[:1], fixed[1:]])
    yield "table", pa.table({str(i): column for i, column in enumerate(x.T)})


def of_pandas(x):
    pandas = pytest.importorskip("pandas")
    yield "frame", pandas.DataFrame(x)
    yield "series of arrays", pandas.Series(list(x))
    yield "series of lists", pandas.Series([np.float32(row).tolist() for row in x])


def of_polars(x):
    polars = pytest.importorskip("polars")
    yield "frame", polars.DataFrame(x)
    yield "arrays", polars.Series("v", x)
    yield "lists", polars.Series("v", x.tolist(), dtype=polars.List(polars.Float32))


def of_torch(x):
    torch = pytest.importorskip("torch")
    yield "list of tensors", list(torch.from_numpy(x))
    yield "transposed", torch.from_numpy(np.ascontiguousarray(x.T)).T


def objects(rows):
    found = np.empty(len(rows), object)
    found[:] = rows
    return found


SOURCES = (of_numpy, of_arrow, of_pandas, of_polars, of_torch)
# What is copied in each call: other orders than that of rows, and float64.
COPIED = ("fortran", "backwards", "columns apart", "frame", "table", "transposed", "series of lists")


def called(function, name, *args, **options):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = function(*args, **options)
    assert {each.category for each in seen} <= {rk.ConversionWarning}
    assert name in COPIED or not seen, [str(each.message) for each in seen]
    return [np.asarray(field) for field in found], len(seen)


@pytest.mark.parametrize("source", SOURCES)
def test_embeddings_and_queries(source):
    expected = rk.mmr(QUERIES, EMBEDDINGS, 4, candidates=CANDIDATES)
    whole = rk.Corpus(EMBEDDINGS).search(QUERIES, 5)
    for (name, rows), (_, asked) in zip(source(EMBEDDINGS), source(QUERIES), strict=True):
        found, copies = called(rk.mmr, name, asked, rows, 4, candidates=CANDIDATES)
        assert copies <= 1, name
        same(found, expected, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rk.ConversionWarning)
            corpus = rk.Corpus(rows)
        same(corpus.search(asked, 5), whole, name)


def test_fortran_order_is_copied_once_with_a_warning():
    with pytest.warns(rk.ConversionWarning) as seen:
        rk.mmr(QUERIES, np.asfortranarray(EMBEDDINGS), 4, candidates=CANDIDATES)
    assert [str(each.message) for each in seen] == [
        "mmr: embeddings have strides (4, 160) and are copied; pass rows that are contiguous to spare that"
    ]
    pools = EMBEDDINGS[CANDIDATES]
    expected = rk.vrsd(QUERIES, pools, 4)
    with pytest.warns(rk.ConversionWarning, match=r"^vrsd: embeddings have strides \(4, 12, 144\) and are copied; "):
        found = rk.vrsd(QUERIES, np.asfortranarray(pools), 4)
    same(found, expected)
    rk.Corpus(np.asfortranarray(EMBEDDINGS))  # copied in any case


def columns_of(values):
    """One value a row, as people have them."""
    pa, pandas, polars = (pytest.importorskip(name) for name in ("pyarrow", "pandas", "polars"))
    chunks = pa.chunked_array([values[:1], values[1:]])
    return values.tolist(), pa.array(values), chunks, pandas.Series(values), polars.Series(values)


def test_values_of_rows_and_queries():
    bias, groups, costs = normal(3, N), np.arange(N) % 5, np.arange(N) % 3 + 1.0
    asked, k, budget = np.arange(Q), np.array([1, 4, 2]), np.array([3.0, 9.0, 5.0])
    options = {"candidates": CANDIDATES, "query_groups": asked, "budget": budget}
    expected = rk.Corpus(EMBEDDINGS, bias=bias, groups=groups, costs=costs).select(QUERIES, k, pool=None, **options)
    of_rows = zip(*map(columns_of, (bias, groups, costs)), strict=True)
    of_queries = zip(*map(columns_of, (asked, k, budget)), strict=True)
    for (b, g, c), (q, number, most) in zip(of_rows, of_queries, strict=True):
        corpus = rk.Corpus(EMBEDDINGS, bias=b, groups=g, costs=c)
        found = corpus.select(QUERIES, number, candidates=CANDIDATES, query_groups=q, budget=most)
        same(found, expected)


def test_strings_of_each_candidate_are_groups():
    pa, pandas, polars = (pytest.importorskip(name) for name in ("pyarrow", "pandas", "polars"))
    numbers = (np.arange(Q * P) % 5).reshape(Q, P)
    names = [[f"author {each}" for each in row] for row in numbers.tolist()]
    frame = pandas.DataFrame(names)
    lists = (pa.array(names), pa.chunked_array([names[:1], names[1:]]), pandas.Series(names), polars.Series(names))
    tables = (frame, frame.astype("category"), pa.Table.from_pandas(frame), polars.DataFrame(names, orient="row"))
    pools = EMBEDDINGS[CANDIDATES]
    expected = rk.mmr(QUERIES, pools, 4, groups=numbers, max_per_group=1)
    for given in (names, list(map(np.array, names)), *lists, *tables):
        found = rk.mmr(QUERIES, pools, 4, groups=given, max_per_group=1)
        np.testing.assert_array_equal(found.indices, expected.indices, err_msg=str(type(given)))


def lists_of(lists):
    pa, pandas, polars = (pytest.importorskip(name) for name in ("pyarrow", "pandas", "polars"))
    yield lists
    yield tuple(map(tuple, lists))
    yield [np.array(each, np.int32) if each else np.array([], np.int32) for each in lists]
    yield objects([np.array(each, np.int64) for each in lists])
    yield pa.array(lists, pa.list_(pa.int64()))
    yield pa.chunked_array([pa.array(lists[:1], pa.list_(pa.int64())), pa.array(lists[1:], pa.list_(pa.int64()))])
    yield pandas.Series(lists)
    yield polars.Series(lists, dtype=polars.List(polars.Int64))
    if len({len(each) for each in lists}) == 1:  # tables, of which iterators give columns or their names
        frame = pandas.DataFrame(lists)
        yield from (frame, pa.Table.from_pandas(frame), polars.DataFrame(np.array(lists)))


@pytest.mark.filterwarnings("ignore::ragsys_kernels.selection.validate.PoolSizeWarning")
@pytest.mark.parametrize("lengths", [(5, 12, 1), (0, 3, 7), (12, 12, 12)])
def test_lists_of_ids_are_padded(lengths):
    lists = [row[:length].tolist() for row, length in zip(CANDIDATES, lengths, strict=True)]
    array = np.full((Q, max(lengths)), -1)
    for row, each in enumerate(lists):
        array[row, : len(each)] = each
    corpus = rk.Corpus(EMBEDDINGS)
    expected = rk.mmr(QUERIES, EMBEDDINGS, 4, candidates=array)
    others = {name: corpus.select(QUERIES, 4, pool=20, **{name: array}) for name in ("initial", "exclude", "allowed")}
    others["certified"] = corpus.select(QUERIES, 4, pool="certified", initial=array)
    for given in lists_of(lists):
        same(rk.mmr(QUERIES, EMBEDDINGS, 4, candidates=given), expected)
        for name in ("initial", "exclude", "allowed"):
            same(corpus.select(QUERIES, 4, pool=20, **{name: given}), others[name], name)
        same(corpus.select(QUERIES, 4, pool="certified", initial=given), others["certified"])


@pytest.mark.filterwarnings("ignore::ragsys_kernels.selection.validate.PoolSizeWarning")
def test_an_empty_list_is_the_same_alone_and_beside_others():
    corpus, own = rk.Corpus(EMBEDDINGS), CANDIDATES[0].tolist()
    for name in ("candidates", "initial", "exclude", "allowed"):
        both, alone = (corpus.select(QUERIES[: len(x)], 4, **{name: x}) for x in ([[], own], [[]]))
        np.testing.assert_array_equal(both.indices[:1], alone.indices)
        for lists in ([own, None], [None, None], pytest.importorskip("pyarrow").array([own, None])):
            with pytest.raises(ValueError, match=f"{name} must have no missing values, got None in row [01]$"):
                corpus.select(QUERIES[:2], 4, **{name: lists})


def refused():
    pa, pandas, polars = (pytest.importorskip(name) for name in ("pyarrow", "pandas", "polars"))
    rows = EMBEDDINGS.tolist()
    short, holed = [*rows[:7], rows[7][:2], *rows[8:]], [*rows[:7], None, *rows[8:]]
    ragged = "must be an array, got rows of 2 to 6 values"
    missing = "must have no missing values, got None in row 7"
    yield "short", pa.array(short), TypeError, ragged
    yield "short", pandas.Series(short), TypeError, ragged
    yield "short", polars.Series(short), TypeError, ragged
    yield "short", [np.array(row) for row in short], TypeError, ragged
    yield "missing", pa.array(holed), ValueError, missing
    yield "missing", pandas.Series(holed), ValueError, missing
    yield "missing", polars.Series(holed), ValueError, missing
    yield "value", pa.array([*rows[:-1], [None, *rows[-1][1:]]]), ValueError, missing.removesuffix(" 7")
    yield "text", pandas.Series(["a"] * N), TypeError, "must be an array of numbers, got Series of dtype"
    yield "text", pa.array(["a"] * N), TypeError, "must be an array of numbers, got StringArray of dtype"
    integers = pandas.DataFrame(np.ones((N, D), int))
    yield "integers", integers, TypeError, "must be float32, float16, bfloat16"


def test_refused():
    for what, rows, error, message in refused():
        for call in (lambda rows=rows: rk.Corpus(rows), lambda rows=rows: rk.mmr(QUERIES, rows, 3)):
            with pytest.raises(error) as raised:
                call()
            text = str(raised.value)
            assert text.partition(": ")[2].startswith(f"embeddings {message}"), (what, type(rows), text)


def test_k_is_named_as_what_it_is():
    for k, message in (
        (True, "k must be an integer, got True"),
        (np.True_, "k must be an integer, got True"),
        ([True, False, True], "k must be integers, got bool"),
        (2.0, "k must be integers, got float64"),
        ("3", "k must be an integer or an array of integers, got '3'"),
    ):
        check_error("mmr", {"queries": QUERIES, "embeddings": EMBEDDINGS, "k": k}, TypeError, message)


def test_numbers_of_arrow():
    pa = pytest.importorskip("pyarrow")
    found = rk.mmr(QUERIES, EMBEDDINGS, pa.scalar(4), lambda_d=pa.scalar(0.5))
    np.testing.assert_array_equal(found.indices, rk.mmr(QUERIES, EMBEDDINGS, 4, lambda_d=0.5).indices)


def of_lists(pa, x):
    """Arrow's lists in chunks of which some are empty, as a filter leaves them, and in parts of longer arrays."""
    for kind in (pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), x.shape[1])):
        whole, none = pa.array(x.tolist(), kind), pa.array([], kind)
        yield pa.chunked_array([none, whole[:1], none, whole[1:], none])
        longer = pa.chunked_array([whole, whole])
        yield longer[len(x) // 2 :][: len(x)].take(
            np.argsort(np.roll(np.arange(len(x)), -(len(x) // 2)), kind="stable")
        )
        table = pa.table({"v": pa.chunked_array([whole, whole]), "keep": [True] * len(x) + [False] * len(x)})
        yield table.filter(table["keep"])["v"]
        yield whole.slice(0, len(x))
        yield pa.concat_arrays([whole[-3:], whole])[3:]


def test_lists_in_chunks_of_which_some_are_empty():
    pa = pytest.importorskip("pyarrow")
    expected = rk.mmr(QUERIES, EMBEDDINGS, 5)
    for rows in of_lists(pa, EMBEDDINGS):
        same(rk.mmr(QUERIES, rows, 5), expected)
        same(rk.Corpus(rows).select(QUERIES, 5, pool=None), rk.Corpus(EMBEDDINGS).select(QUERIES, 5, pool=None))
    for queries in of_lists(pa, QUERIES):
        same(rk.mmr(queries, EMBEDDINGS, 5), expected)
    for chunks in ([], [[]], [[], []]):
        none = pa.chunked_array(chunks, pa.list_(pa.float32(), D))
        assert rk.mmr(none, EMBEDDINGS, 5).indices.shape == (0, 5)


def test_what_is_missing_in_chunks_has_its_row_in_all():
    pa = pytest.importorskip("pyarrow")
    row = [1.0] * D
    for kind in (pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), D)):
        for last, error, message in (
            (None, ValueError, "have no missing values, got None in row 5"),
            ([1.0, None, *row[2:]], ValueError, "have no missing values, got None in row 5"),
            ([1.0] * (D - 1), TypeError, f"be an array, got rows of {D - 1} to {D} values"),
        ):
            if last is None or len(last) == D or not pa.types.is_fixed_size_list(kind):
                rows = pa.chunked_array([[row, row], [], [row, row], [row, last]], kind)
                check_error(
                    "mmr", {"queries": QUERIES, "embeddings": rows, "k": 3}, error, f"embeddings must {message}"
                )
    apart = pa.chunked_array([[row], [row[1:]]], pa.list_(pa.float32()))
    message = f"embeddings must be an array, got rows of {D - 1} to {D} values"
    check_error("mmr", {"queries": QUERIES, "embeddings": apart, "k": 3}, TypeError, message)
