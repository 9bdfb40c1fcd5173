"""The recurrence over chunks of steps: a loop inside each, `lax.associative_scan` over the composites of all."""

import jax.numpy as jnp
from jax import lax

from rltriton_jax.scan.plain import loop
from rltriton_jax.scan.plain.loop import Source
from rltriton_jax.scan.plain.neighbours import shifted

MOST_STEPS = 4096
"""The longest chunk: a sum of so many equal terms is still exact to some hundred units in the last place."""


def num_chunks(shape, time_axis: int) -> int:
    """How many chunks are fastest."""
    steps = shape[time_axis]
    if not isinstance(steps, int):
        return 1
    return -(-steps // MOST_STEPS)


class Chunks:
    """Steps in chunks of one length: the axis of time becomes one of chunks and, behind it, one of their steps.

    Where the length does not divide the steps, the last chunk in scan order is filled up beyond its end.
    """

    def __init__(self, shape, time_axis: int, count: int, reverse: bool):
        self.axis, self.steps, self.reverse = time_axis, shape[time_axis], reverse
        self.length = -(-self.steps // count)
        self.count = -(-self.steps // self.length)
        self.filling = self.count * self.length - self.steps
        self.shape = self._halved(shape, self.count, self.length)

    def _halved(self, shape, count, length):
        return (*shape[: self.axis], count, length, *shape[self.axis + 1 :])

    def split(self, x):
        held = x.shape[self.axis]
        if held == 1:
            return x.reshape(self._halved(x.shape, 1, 1))
        ends = (self.filling, 0, 0) if self.reverse else (0, self.filling, 0)
        x = lax.pad(x, jnp.zeros((), x.dtype), [ends if a == self.axis else (0, 0, 0) for a in range(x.ndim)])
        return x.reshape(self._halved(x.shape, self.count, self.length))

    def join(self, x):
        x = x.reshape((*x.shape[: self.axis], self.count * self.length, *x.shape[self.axis + 2 :]))
        first = self.filling if self.reverse else 0
        return lax.slice_in_dim(x, first, first + self.steps, axis=self.axis)

    def row(self, x):
        """What is of one step for all chunks together, with one axis of time again."""
        return lax.squeeze(x, (self.axis,))

    def source(self, source: Source) -> Source:
        """Where each chunk finds what it reads; at its edge that is a step of the next chunk."""
        values, shift, beyond = source
        if values.shape[self.axis] == self.steps + 1:
            return Source(self.split(lax.slice_in_dim(values, shift, shift + self.steps, axis=self.axis)))
        if beyond is None:
            return Source(self.split(values))
        if shift != (1 if self.reverse else -1):
            return Source(self.split(shifted(values.astype(beyond.dtype), shift, beyond, self.axis)))
        values = self.split(values)
        last = values.shape[self.axis + 1] - 1
        edge = lax.slice_in_dim(values, *((0, 1) if shift > 0 else (last, last + 1)), axis=self.axis + 1)
        edge = jnp.broadcast_to(edge, (*edge.shape[: self.axis], self.count, *edge.shape[self.axis + 1 :]))
        return Source(values, shift, shifted(edge.astype(beyond.dtype), shift, self.split(beyond), self.axis))

    def live(self, i):
        """Is the i-th step of each chunk one of the window, rather than one that fills the last chunk up?"""
        starts = self.length * lax.broadcasted_iota(
            jnp.int32, [self.count if a == self.axis else 1 for a in range(len(self.shape))], self.axis
        )
        return starts + i >= self.filling if self.reverse else starts + i < self.steps
