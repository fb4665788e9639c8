"""Model and tokenizer of transformers from a name, a folder or a GGUF file, which is unpacked once."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

from ..._base import env
from ..._base.extras import needed
from ..._base.files import blocks_of, sha256_of
from ..._base.types import PathLike
from .. import packaged
from ..storage.once import made_once

DTYPES = ("float32", "float16", "bfloat16")


def configuration(config: Any) -> str:
    """Return what a transformers configuration says of the computation, without what is only known after saving."""
    found = config.to_diff_dict()
    for name in ("_name_or_path", "transformers_version", "architectures", "dtype"):
        found.pop(name, None)
    return str(sorted(found.items(), key=str))


def adapters(model: Any) -> str:
    """Return what PEFT's adapters in a model compute beside their weights, such as LoRA's scale; "" without any."""
    found = []
    for name, config in sorted(getattr(model, "peft_config", {}).items()):
        said = {key: sorted(value) if isinstance(value, set) else value for key, value in config.to_dict().items()}
        for place in ("base_model_name_or_path", "revision", "inference_mode"):
            said.pop(place, None)
        found.append(f"{name} {sorted(said.items())}")
    for name, module in model.named_modules():
        scaling = getattr(module, "scaling", None)
        if isinstance(scaling, dict) and hasattr(module, "active_adapters"):
            found.append(f"{name} {sorted(scaling.items())} {module.active_adapters} {module.disable_adapters}")
    return " ".join(found)


def add_tensor(digest: Any, name: str, tensor: Any) -> None:
    """Add name, type, shape and elements of a tensor to a hash."""
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.detach().cpu().contiguous().flatten().view(required("torch").uint8).numpy().data)


def load(name_or_path: PathLike, dtype: str, cache: PathLike | None) -> tuple[Any, Any]:
    """Return (model, tokenizer) with weights of the dtype; see `HuggingFaceModel.from_pretrained`."""
    if dtype not in DTYPES:
        raise ValueError(f"HuggingFaceModel: dtype must be {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, got {dtype!r}")
    name = os.fspath(name_or_path)
    if name in packaged.LANGUAGE_MODELS:
        cache = env.cache_folder() if cache is None else cache
        name_or_path = packaged.find(name, cache)
    source, file = _locate(name_or_path)
    if file is None or cache is None:
        return _pretrained(source, file, dtype)
    gguf = Path(source) / file
    with open(gguf, "rb") as content:
        digest = sha256_of(blocks_of(content))
    folder = Path(cache) / "models" / f"{gguf.stem}-{dtype}-{digest[:16]}"
    return _pretrained(str(made_once(folder, lambda staging: _unpacked(gguf, dtype, staging))), None, dtype)


def _pretrained(source: str, gguf_file: str | None, dtype: str) -> tuple[Any, Any]:
    torch, transformers = required("torch"), required("transformers")
    options: dict[str, Any] = {} if gguf_file is None else {"gguf_file": gguf_file}
    options["trust_remote_code"] = False  # else transformers asks on a terminal whether to run a model's own code
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        source, dtype=getattr(torch, dtype), output_loading_info=True, **options
    )
    missing = sorted(info["missing_keys"])  # transformers fills them with random numbers
    if missing:
        raise ValueError(f"HuggingFaceModel: model must have all its weights, got none for {missing[0]}")
    return model, tokenizer


def _unpacked(gguf: Path, dtype: str, staging: Path) -> Path:
    """Return the model of a GGUF file as a folder of safetensors, with the same outputs; it loads 80 times as fast."""
    model, tokenizer = _pretrained(str(gguf.parent), gguf.name, dtype)
    # A model that came from a GGUF file refuses to be saved: its weights go into a new one, which knows of no file.
    config = copy.deepcopy(model.config)
    vars(config).pop("quantization_config", None)
    plain = type(model)._from_config(config, dtype=model.dtype)
    plain.load_state_dict(model.state_dict())
    folder = staging / "content"
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _locate(name_or_path: PathLike) -> tuple[str, str | None]:
    """Return what transformers loads from: a hub name or folder, and the name of the GGUF file in it."""
    path = Path(name_or_path)
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise FileNotFoundError(f"HuggingFaceModel: model must be an existing file, got {path}")
        return str(path.parent), path.name
    if path.is_dir():
        files = [] if (path / "config.json").is_file() else sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return str(path), files[0].name
        if not (path / "config.json").is_file():
            raise FileNotFoundError(
                f"HuggingFaceModel: model must be a folder with config.json or one .gguf, got {path}"
            )
    elif path.is_absolute() or os.fspath(name_or_path).startswith(".") or len(path.parts) > 2:
        raise FileNotFoundError(f"HuggingFaceModel: model must be a hub name or an existing path, got {path}")
    return os.fspath(name_or_path), None


def required(name: str) -> Any:
    """Import a module of the extra ``lm``."""
    with needed("ragsys_kernels.icl", "lm"):
        return __import__(name)
