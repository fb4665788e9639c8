"""The options of components as fields of pydantic's models, which LangChain and LlamaIndex have."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from . import _options

_Fields: Any = create_model(
    "_Fields",
    method=(str, Field(default="mmr", description="The rule.")),
    **{name: (str | None, Field(default=None, description=f"Entry of the metadata: {argument} of the items."))
       for name, argument in _options.KEYS.items()},
    token_counter=(Any, Field(default=None, exclude=True, description="Counts what the text of an item costs.")),
    **{each.name: (_options.annotation(each), Field(default=_options.DEFAULTS[each.name], description=f"{each.help}."))
       for each in _options.PARAMETERS},
)  # fmt: skip


class Options(_Fields, BaseModel):
    """Options to select by, checked together; a name that the model does not have is an error."""

    model_config = ConfigDict(extra="forbid")

    _weight: ClassVar[str] = "lambda_mult"

    @staticmethod
    def _given_relevance(values: dict[str, Any]) -> tuple[str, bool]:
        """Return what relevance is called where it is given, and whether it is."""
        return "relevance_key", values.get("relevance_key") is not None

    @model_validator(mode="before")
    @classmethod
    def _checked(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        given = {name: values[name] for name in _options.DEFAULTS if name in values}
        weight = cls._weight, values.get(cls._weight, 0.5)
        found = _options.checked(cls.__name__, given, weight, cls._given_relevance(values))
        return values | {name: found[name] for name in (*given, cls._weight)}
