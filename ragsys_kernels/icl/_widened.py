"""A model of two-byte weights that runs in float32 for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._loading import required


@contextmanager
def widened(model: Any) -> Iterator[None]:
    """Run the blocks of a model in float32: each has float32 weights while it runs, and its own ones after it.

    Many layers of bfloat16, float16 or TF32 make rounding as large as a mistake; so what is compared is run like this.
    At most one block at a time takes more memory, and the model's own tensors are not touched. Weights that are
    elsewhere until their layer runs (accelerate's offloading) stay as they are.
    """
    with _full_precision():
        if any(tensor.is_meta for tensor in model.parameters()):
            yield
        else:
            with _wide_blocks(model):
                yield


@contextmanager
def _full_precision() -> Iterator[None]:
    """Let products of float32 be products of float32."""
    torch = required("torch")
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set backend by backend, and stays so
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _wide_blocks(model: Any) -> Iterator[None]:
    own: dict[Any, list[tuple[dict[str, Any], str, Any]]] = {}

    def widen(module: Any, whole: bool) -> None:
        for part in module.modules() if whole else (module,):
            for tensors in (part._parameters, part._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None and tensor.is_floating_point() and tensor.element_size() == 2:
                        own.setdefault(module, []).append((tensors, name, tensor))
                        tensors[name] = tensor.detach().float()

    def restore(module: Any) -> None:
        for tensors, name, tensor in own.pop(module, ()):
            tensors[name] = tensor

    hooks = []
    for block, whole in _blocks(model):
        hooks.append(block.register_forward_pre_hook(lambda module, _, whole=whole: widen(module, whole)))
        hooks.append(block.register_forward_hook(lambda module, *_: restore(module)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module in [*own]:  # of a run that raised
            restore(module)


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
