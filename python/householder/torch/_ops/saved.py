"""Objects of kernels that a forward pass saves beside tensors, such as the factors of ``W``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from householder.torch._ops.operation import Context, NativeObject, Options, Saved


class Handle(Tensor):
    """A tensor among the saved ones that carries an object.

    The object then lives as long as the saved tensors, at most until the last backward pass; as an attribute of the
    autograd context, it would live through the next forward pass. Where hooks copy the tensor or write it to a file,
    what they read back is a plain tensor, because ``torch.load`` reads nothing else. The backward pass then computes
    the object again, with the same bits.
    """

    saved: NativeObject = None

    def detach(self) -> Tensor:
        """Return another handle of the same object; activation checkpoints hold what the second forward pass saves."""
        handle = _NOTHING.as_subclass(Handle)
        handle.saved = self.saved
        return handle

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _NOTHING.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: Any) -> Tensor:
        return _NOTHING


# Inference tensors cannot be saved for a backward pass, and the first import may happen in inference mode.
with torch.inference_mode(False):
    _NOTHING = torch.zeros(1, device="cpu")


def save(ctx: Context, tensors: Sequence[Tensor | None], saved: Saved, options: Options) -> None:
    """Save tensors, what a forward pass saves and options in the context of an autograd function.

    A handle or a plain tensor is always saved last, because checkpoints count saved tensors. A backward pass asks for
    ``getattr(handle, "saved", None)``.
    """
    handle = _NOTHING
    if saved.native is not None:
        handle = handle.as_subclass(Handle)  # takes a third of the time of a new tensor
        handle.saved = saved.native
    ctx.options = options
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *saved[:-1], handle)
