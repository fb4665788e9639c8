"""A store as a call names it: where it is, its options, its key, and errors without what is secret."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote

from ..._base import env
from ..._base.checks import line, shown
from ..._base.extras import missing
from ..._base.files import first_line

OP = "sync_corpus"
_PASSWORD = re.compile(r"://[^:/?#@]*:(.+)@")  # up to the last @, for what is not encoded as it should be

T = TypeVar("T")

# How many rows there are, and then ids with vectors, each an array or a list.
Rows = Generator[Any, None, None]


class Source:
    """What ``KIND:PLACE?NAME=VALUE&...`` names."""

    def __init__(self, text: str) -> None:
        self.kind, _, rest = text.partition(":")
        self.place, _, query = rest.partition("?")
        self.options = dict(parse_qsl(query, keep_blank_values=True))
        found = _PASSWORD.search(text)
        self.password = "" if found is None else found[1]
        if re.search("[/?#@]", self.password) and not re.match(r"\d+/", self.password):  # a port
            raise ValueError(
                f"{OP}: {self.kind} must have the signs / ? # @ of a password as %2F %3F %23 %40, got others"
            )
        self._secrets = {self.password, *(value for name, value in self.options.items() if "password" in name)}

    @property
    def is_remote(self) -> bool:
        return "://" in self.place

    def existing(self) -> str:
        """Return the path of a store that is a file or folder."""
        if not os.path.exists(self.place):
            raise FileNotFoundError(f"{OP}: {self.kind} must be an existing file or folder, got {self.place}")
        return str(Path(self.place).resolve())

    def taken(self, need: str, **usual: str) -> tuple[str, ...]:
        """Return the options, those with a default last; refuse others."""
        known = {need, *usual, *(("ca_file", "key_file") if self.is_remote and self.kind in env.STORE_KEYS else ())}
        for name in self.options:
            if name not in known:
                raise ValueError(
                    f"{OP}: {self.kind} must have options of {', '.join(sorted(known))}, got {shown(name)}"
                )
        if not self.options.get(need):
            raise ValueError(f"{OP}: {self.kind} must have a {need}, as {self.kind}:PLACE?{need}=NAME, got none")
        return (self.options[need], *(self.options.get(name, value) for name, value in usual.items()))

    def key(self) -> str | None:
        """Return the key of a server: of a file, which may change meanwhile, or of the environment."""
        name = env.STORE_KEYS[self.kind]
        if self.password:
            raise ValueError(f"{OP}: {self.kind} must get its key by {name} or key_file, got a password in the source")
        file = self._file("key_file")
        key = env.store_key(self.kind) if file is None else first_line(file)
        self._secrets.add(key or "")
        return key

    def certificates(self) -> str | None:
        """Return the file of the certificates that https trusts, None for those of the client."""
        return self._file("ca_file")

    def _file(self, name: str) -> str | None:
        path = self.options.get(name)
        if path is not None and not os.path.isfile(path):
            raise FileNotFoundError(f"{OP}: {name} must be an existing file, got {path}")
        return path

    def client(self, module: str, package: str) -> Any:
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            raise missing(OP, package, f"pip install {package}", error.name) from error

    def refused(self, error: object, rule: str = "have table and columns as named") -> ValueError:
        """Return the error of what the store cannot give, however often it is asked."""
        return ValueError(f"{OP}: {self.kind} must {rule}, got {line(error)}")

    def told(self, items: Generator[T, None, None]) -> Generator[T, None, None]:
        """Yield the items; raise what a client raises as one of our errors, in which nothing is secret."""
        try:
            yield from items
            return
        except (ModuleNotFoundError, MemoryError):
            raise
        except Exception as error:  # each client has its own
            told = self._told(error)
        raise told  # without the client's error, whose text may have the password

    def _told(self, error: Exception) -> Exception:
        text, own = line(error), f"{OP}: "
        is_own, text = text.startswith(own), text.removeprefix(own)
        *_, cause = chain(error)
        if not is_own:
            text = f"{type(error).__name__}: {text}" + (f" ({line(cause)})" if line(cause) not in text else "")
        for secret in filter(None, self._secrets):
            for form in {secret, unquote(secret), quote(secret), quote(secret, safe="")}:
                text = text.replace(form, "***")
        if is_own:
            return type(error)(own + text)
        return ConnectionError(f"{own}{self.kind} must answer, got {text}")


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that it came from; some clients close a circle."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


Reader = Callable[[Source, int], Rows]


def quoted(name: str) -> str:
    """Return a name of SQL, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """Return the name of a table, which may have a schema before it; what is in quotes already stays as it is."""
    parts = re.findall(r'"(?:[^"]|"")*"|[^."]+', name)
    if ".".join(parts) != name:
        return quoted(name)
    return ".".join(part if part.startswith('"') else quoted(part) for part in parts)
