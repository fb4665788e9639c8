"""The designed sets: vectors of small whole numbers, found by a search for those that tell the most variants apart.

A set is a line: a weight, a number of picks, the query and the rows, a digit an element. With none of the variants that
a set is for are the best two values of a step, or two relevances, nearer than 5e-4, thousands of times the rounding of
float32. Ties are exact: the lengths and the largest elements of their vectors are powers of two. The sets of a stage
give the same picks whatever the respects of later stages are: those of `CORE` have unit rows without a negative product
or a tie.
"""

from __future__ import annotations

import math
import re

from .fit import Stage
from .variants import Question

_Vector = tuple[float, ...]

_CORE = """
0.8 4 40301421 32113313 03004014 13431032 12333224 32101410 30442402
0.3 4 40332213 04201142 31432432 22401400 32222201 11303323 22014434
0.7 4 00244113 14244143 22222301 03330010 10214243 41030401 00310141
0.6 4 12042041 04132330 41033204 12413413 31143213 31000012 03242111
0.3 4 11141321 30241210 11011041 33340310 21313222 40113301 23323003
0.8 4 22122143 12342034 40331401 13403143 12412234 22103314 33421001
0.8 4 20422204 40430011 41310032 41044201 32203030 43131133 02112342
0.2 4 11004241 32043032 44023320 30432101 21103232 42100212 40030303
0.6 4 20422424 33343440 44214044 22442203 34404102 12240013
0.7 4 00034020 43302301 00002000 00012311 32000032 11201200 44021222
0.4 4 40020000 24143044 14024241 33143420 01302403 13343432
0.2 3 43424343 32213134 32040113 32032142 34113410 00203331 04330033
0.4 4 10244201 40424202 40324244 01142341 14143300 40201044 10202013
0.6 3 34421204 01200303 34223144 23301010 01110112 14211040 42002043
0.8 4 41031432 33012431 01303304 13101344 10104040 02330112 30210220
0.4 4 24231440 41123440 22203402 12141412 13320402 02222002 30304020
0.2 4 04004134 42030401 10341020 14021012 00413342 44401230 02422333
0.8 4 41204340 40313143 21324422 24342214 12412340 04234000 00242003
0.8 4 23423023 34300140 12004120 20304433 30203204 13402313 42000031
0.8 3 22444230 22433144 14134133 21320344 41212014 22123143 04300223
0.8 5 42211041 02023133 30104210 01014301 01013234 43340100 24010401
0.8 5 10041100 01044034 43041134 41340303 43313130 32331102 21333233 42304013
0.8 5 00214134 31422334 10231300 00012330 40302101 44444132 33230411
0.4 5 13404402 33012401 02332113 13023013 23040221 04040420 00400100
0.4 5 42114401 34134344 40001144 01022044 23310033 20244031 30131213
0.8 5 03014013 13323314 33012000 03031441 10014400 40422302 32044340 03000332
"""
_NEGATIVE = """
0.4 4 20101000 3-22-1001-1 0-2-1-1-22-33 -12-100-21-1 -1301-32-33 -1-1-2-23-2-12 -10-3-212-1-2
0.7 4 20300202 3-11-30-303 -2-2-11-330-2 -332-1-3-12-2 -22-12011-2 -3-111-3-11-3 33231-3-3-3
0.3 3 332323-11 0-23312-20 11-32-3-2-1-2 -10-1-10032 3-31-22-130 -210-3333-3 0-2-1-30-3-13
"""
_LENGTHS = """
0.7 4 42232043 22031030 31310444 40414042 40323430 12412100 22342212
0.6 4 11423143 20342242 31322441 00102424 30404223 20130302 23023403
0.3 3 13242221 14123320 22340420 43103120 44001334 30232212 34432314
0.8 3 32341300 22221212 44310324 33333310 32040001 14142111 21014011
0.7 3 22020442 21101103 13013313 00243333 00004043 44133241 11404143
0.7 3 14342240 32133131 00040442 40021244 04400204 42312010 04223032
0.3 3 00421001 03443211 23214144 20422304 23344023 24102143 20034111
"""
_ENDS = """
0 4 34031201 13334413 23420144 03413202 20202143 44130002 20224401
1 4 01023124 14010230 23132031 04140104 03010333 03113404 22231112
0 3 03214304 34132004 43022143 03141221 13402112 02203021 21344034
0 5 12442122 44042022 23213310 20230432 34030141 01324242 30422030
1 5 21144004 01042042 14140244 22133243 01140113 04110324 33310421
"""
# The first, third and fourth of the rows after the first are equally relevant.
_FIRST_TIES = """
0.5 1 11110000 11001100 11100001 10001110 01111000 10110100 00110011
"""
# After the first pick, at 2, all others are worth the same. In the first set 1 and 4 are the most relevant of them, 3
# and 5 the least; the second is the first at a weight of 1; in the third 1 is the least relevant, then 3.
_TIES = """
0.5 2 24141413 34301234 24442202 34340213 21334043 34421303 40424222 43432301 44310332
1 2 24141413 34301234 24442202 34340213 21334043 34421303 40424222 43432301 44310332
0.5 2 24141413 04404004 00444040 34340213 40400440 41314142 21414134
"""
# Three rows are equal.
_DUPLICATES = """
0.75 5 21120121 03211001 31120001 03211001 11120300 03211001
"""
# The relevance of zeros lies between those of the others.
_ODD = """
0.7 6 21120121 -310-12-201 31120001 00000000 02311010 -1-1002-310 1-2120302
"""


def _vector(text: str) -> _Vector:
    return tuple(float(digit) for digit in re.findall(r"-?\d", text))


def _unit(vector: _Vector) -> _Vector:
    length = math.sqrt(sum(x * x for x in vector))
    return tuple(x / length for x in vector) if length else vector


def _questions(name: str, sets: str, scale: float | None = None) -> tuple[Question, ...]:
    """Return the sets with unit rows, or with rows divided by ``scale``."""
    found = []
    lines = sets.strip().splitlines()
    for number, line in enumerate(lines, 1):
        weight, k, query, *rows = line.split()
        vectors = map(_vector, rows)
        scaled = tuple(_unit(row) if scale is None else tuple(x / scale for x in row) for row in vectors)
        found.append(
            Question(
                f"{name} {number}" if len(lines) > 1 else name, _unit(_vector(query)), scaled, float(weight), int(k)
            )
        )
    return tuple(found)


def _arc(name: str, count: int, k: int) -> Question:
    """Return rows whose cosines with the query fall from 1 in equal steps, in a mixed order; all lie in one plane."""
    cosines = [1 - (i * 23 % count) / (count + 6) for i in range(count)]
    rows = tuple((c, math.sqrt(1 - c * c), *[0.0] * 6) for c in cosines)
    return Question(name, (1.0, *[0.0] * 7), rows, 0.25, k)


CORE = Stage(
    _questions("core", _CORE),
    {
        "first": {"relevance": ("relevance", "position")},
        "penalty": {"max": ("max", "mean", "last", "sum", "min", "first", "none")},
        "weighs": {"relevance": ("relevance", "diversity", "penalty", "gain", "nothing", "no relevance")},
        "negative": {"kept": ("kept", "shifted")},
        "pool": {"all": ("all", "k")},
        "order": {"picks": ("picks", "relevance", "input", "reversed")},
        "relevance": {"cosine": ("cosine", "euclidean", "squared")},
        "similarity": {"cosine": ("cosine", "euclidean", "squared")},
    },
)
NEGATIVE = Stage(_questions("negative", _NEGATIVE), {"negative": {"kept": ("kept", "zero", "absolute")}})
LENGTHS = Stage(
    _questions("lengths", _LENGTHS, 4.0),
    {"relevance": {"cosine": ("cosine", "dot")}, "similarity": {"cosine": ("cosine", "dot")}},
)
ENDS = Stage(
    (*_questions("first tie", _FIRST_TIES), *_questions("ends", _ENDS)),
    {
        "first": {"relevance": ("relevance", "weighted")},
        "zero_weight": {"zero": ("zero", "default")},
        "first_ties": {"lowest": ("lowest", "highest")},
        "pool": {"k": ("k", "k, highest")},
    },
)
TIES = Stage(
    _questions("ties", _TIES),
    {
        "ties": {
            "lowest": (
                "lowest",
                "more relevant, lowest",
                "more relevant, highest",
                "less relevant, lowest",
                "less relevant, highest",
                "highest",
                "list",
                "ranked list",
            )
        }
    },
)
STAGES = (CORE, NEGATIVE, LENGTHS, ENDS, TIES)

# The relevance that is given is not that of the vectors.
GIVEN = Stage(
    (
        Question("given 1", CORE.questions[0].query, CORE.questions[0].rows, 0.7, 4, (0.2, 0.9, 0.5, 0.3, 0.8, 0.6)),
        Question("given 2", CORE.questions[1].query, CORE.questions[1].rows, 0.6, 4, (0.7, 0.1, 0.9, 0.6, 0.2, 0.4)),
    ),
    {
        "relevance": {
            "cosine": ("given", "cosine"),
            "dot": ("given", "dot"),
            "euclidean": ("given", "euclidean"),
            "squared": ("given", "squared"),
        }
    },
)

POOLS = (_arc("pool 2", 60, 2), _arc("pool 3", 60, 3))
(EQUAL_ROWS,) = _questions("equal rows", _DUPLICATES)
EDGE = CORE.questions[2]
(ZERO_ROW,) = _questions("zero row", _ODD)
ZERO_PLACE = ZERO_ROW.rows.index((0.0,) * 8)
NAN_ROW = Question(
    "row with NaN",
    ZERO_ROW.query,
    tuple((math.nan, *row[1:]) if i == ZERO_PLACE else row for i, row in enumerate(ZERO_ROW.rows)),
    ZERO_ROW.weight,
    ZERO_ROW.k,
)
