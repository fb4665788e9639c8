"""Drop-in calls for other libraries: their names, argument order, defaults and rules, on the kernels of this one.

``langchain``, ``llama_index``, ``haystack``, ``pyversity``, ``vrsd``, ``trl`` and ``lm_eval`` have one peer each; where
they do something else than the peer the docstring says so. A peer is imported only where its types are needed.
"""
