"""A copy of a model of two-byte weights that runs in float32."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .loading import required


@contextmanager
def widened(model: Any) -> Iterator[Any]:
    """Yield a copy of a model that shares its parameters and buffers and runs in float32, block by block.

    Many layers of bfloat16, float16 or TF32 make rounding as large as a mistake; so what is compared is run like this.
    A block has float32 weights while it runs, so that at most one at a time takes more memory; of embeddings only the
    rows that are looked up are widened. The model itself may run in other threads meanwhile. It is yielded where there
    is nothing to widen, or where weights are elsewhere until their layer runs (accelerate's offloading).
    """
    tensors = [*model.parameters(), *model.buffers()]
    with _full_precision():
        if any(tensor.is_meta for tensor in tensors) or not any(map(_is_narrow, tensors)):
            yield model
        else:
            twin = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
            _widen_blocks(twin)
            yield twin


@contextmanager
def _full_precision() -> Iterator[None]:
    """Let products of float32 be products of float32."""
    torch = required("torch")
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set backend by backend, and stays so
        before = "highest"
    if before == "highest":  # setting it again would fix it for backends that follow another setting
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _widen_blocks(model: Any) -> None:
    """Let the blocks of a model widen their weights before they run, and take their own ones back after it."""
    embedding = required("torch").nn.Embedding
    own: dict[Any, list[tuple[dict[str, Any], str, Any]]] = {}

    def widen(module: Any, whole: bool) -> None:
        for part in module.modules() if whole else (module,):
            if isinstance(part, embedding):
                continue
            for tensors in (part._parameters, part._buffers):
                for name, tensor in tensors.items():
                    if _is_narrow(tensor):
                        own.setdefault(module, []).append((tensors, name, tensor))
                        tensors[name] = tensor.detach().float()

    def restore(module: Any) -> None:
        for tensors, name, tensor in own.pop(module, ()):
            tensors[name] = tensor

    for block, whole in _blocks(model):
        block.register_forward_pre_hook(lambda module, _, whole=whole: widen(module, whole))
        block.register_forward_hook(lambda module, *_: restore(module))
    for part in model.modules():
        if isinstance(part, embedding):
            part.register_forward_hook(lambda _, __, rows: rows.float() if _is_narrow(rows) else None)


def _is_narrow(tensor: Any) -> bool:
    return tensor is not None and tensor.is_floating_point() and tensor.element_size() == 2


def _blocks(module: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the modules whose weights are widened together: layers, what stands beside them, and what holds them.

    The last ones go with False: without the modules in them.
    """
    listed = required("torch").nn.ModuleList
    if not any(isinstance(part, listed) for part in module.modules()):
        yield module, True
    elif isinstance(module, listed):
        yield from ((layer, True) for layer in module)
    else:
        yield module, False
        for child in module.children():
            yield from _blocks(child)
