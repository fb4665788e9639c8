"""Commands whose options are the parameters of a function of the library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from enum import Enum, EnumMeta
from functools import wraps
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

Command = Callable[..., None]


def takes(function: Callable[..., Any], **options: Any) -> Callable[[Command], Command]:
    """Give a command options that are parameters of a function, with the types and defaults that they have there.

    Each is what `option` returns; or ``Annotated`` with a type, where that of the command line is another; or ``...``,
    which is the place in the help of a parameter of the command itself. The others of these come last. The command gets
    the values as the function takes them.
    """

    def decorate(command: Command) -> Command:
        own = {
            name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        }

        @wraps(command)
        def called(**given: Any) -> None:
            command(**{
                name: value.value if isinstance(value, Enum) and name not in own else value
                for name, value in given.items()
            })  # fmt: skip

        described = {**options, **dict.fromkeys(own, ...)}
        theirs = _parameters(function, {name: one for name, one in options.items() if one is not ...})
        called.__signature__ = inspect.Signature([{**own, **theirs}[name] for name in described])  # type: ignore[attr-defined]
        return called

    return decorate


def _parameters(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, inspect.Parameter]:
    types, found = get_type_hints(function), inspect.signature(function).parameters
    made = {}
    for name, one in options.items():
        default = found[name].default
        if get_origin(one) is not Annotated:
            one = copy(one)
            if default is False and not one.param_decls and one.default is ...:
                one.param_decls = (f"--{name.replace('_', '-')}",)  # and no --no-
            one = Annotated[Any if one.parser else _type(name, types[name]), one]
        kind = get_args(one)[0]
        if isinstance(kind, EnumMeta) and default is not inspect.Parameter.empty:
            default = kind(default)
        made[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=one)
    return made


def _type(name: str, hint: Any) -> Any:
    """Return the type of a parameter for Typer: paths and sizes as "2G" are text, words to choose from an enum."""
    kinds = (hint,) if get_origin(hint) is Literal else get_args(hint) or (hint,)
    kind: Any = str if str in kinds else kinds[0]
    if get_origin(kind) is Literal:
        kind = Enum(name, [(word, word) for word in get_args(kind)], type=str)  # type: ignore[misc,no-redef]
    return kind | None if NoneType in kinds else kind
