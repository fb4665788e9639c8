"""The figures of the paper's Tables 1 and 2."""

from __future__ import annotations

_METRICS = ("DPO", "MC1", "MC2", "MC3")
_ROWS = {
    "Mistral-7B-v0.1": {
        "Fix": (-20.40, 0.2815, 0.2086, 0.4285),
        "Bias": (-33.56, 0.2411, 0.1652, 0.3596),
        "Rel": (-12.71, 0.4455, 0.3664, 0.5925),
        "Rel+Bias": (-13.63, 0.4602, 0.3663, 0.5969),
        "Rel+Div": (-12.37, 0.5177, 0.3930, 0.6616),
        "Rel+Div+Bias": (-14.54, 0.4676, 0.3592, 0.6255),
    },
    "Llama-3-8B-chat": {
        "Fix": (-22.12, 0.3623, 0.2709, 0.5195),
        "Bias": (-17.55, 0.3831, 0.2876, 0.5729),
        "Rel": (-17.20, 0.4920, 0.4046, 0.6518),
        "Rel+Bias": (-17.14, 0.5043, 0.4083, 0.6570),
        "Rel+Div": (-16.14, 0.5520, 0.4173, 0.7009),
        "Rel+Div+Bias": (-15.80, 0.5177, 0.4007, 0.6841),
    },
}
# Model, retriever, metric.
TABLES = {
    model: {label: dict(zip(_METRICS, row, strict=True)) for label, row in rows.items()}
    for model, rows in _ROWS.items()
}
