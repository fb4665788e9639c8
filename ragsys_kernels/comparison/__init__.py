"""Rules of selection compared on one's own corpus and queries: a table, a recommendation, a report.

==============================================  =======================================================================
``run``, ``files``, ``result``                  `compare`, `compare_files`, and what they return
``settings``, ``problem``, ``qrels``            which methods; queries with their pools; judgements
``work``, ``measures``                          a method's picks, what they are worth, its time
``table``, ``advice``                           intervals and differences; the recommendation and its rule
``curve``, ``sizes``, ``peers``, ``examples``   MMR at every λ; how large a pool; other libraries; picks side by side
``store``                                       what is done is kept, so that a killed run goes on
``write``, ``page``, ``plot``                   the report: what it says, its files
==============================================  =======================================================================
"""

from .files import compare_files
from .result import Comparison
from .run import compare

__all__ = ["Comparison", "compare", "compare_files"]
