"""The service against its bars: ``make bench-serve``, ``python -m benchmarks.serve``.

The server has one core and the generator of load another; an empty handler on the same kind of server stands beside it.
"""
