"""Steps in chunks, so that one loop goes through all chunks at once, and `lax.associative_scan` through the chunks.

How much the roundings of a scan add up to, for results and gradients up to a million steps. In units of
eps * scan(|w|, |u|), where eps is 2^-23 and n = min(T, 1 / (1 - gamma * lambda)) the number of terms that count:

- data of mean zero: 4, and sqrt(n) more where the weight itself is rounded, in the product of a gamma and a lambda
  below 1 and in the powers that `lax.associative_scan` takes. Measured: up to 3, and 0.7 sqrt(n).
- data of one sign: 4 + 1.25 n, half for each product, half for each sum and a quarter for the weight. Measured:
  up to 1.2 n.
- equal terms whose weight is 1: the length of a chunk in place of T. Measured at T = 10^6: 240 here, 80000 in one loop
  over all steps, 2.4 in `lax.associative_scan`.
"""

import math

import jax.numpy as jnp
from jax import lax

from rltriton_jax.scan.plain.loop import Source
from rltriton_jax.scan.plain.neighbours import shifted

MOST_STEPS = 4096
"""The longest chunk: the error of a sum of equal terms grows with its length."""

SHORTER = 512
"""The length where there are many chunks: the fastest with many environments, and 512 equal terms are off by little."""

LANES = {1: 8, 2: 4}
"""By the number of environments, how many chunks are fastest where these fill a vector that stays in registers."""


def num_chunks(shape) -> int:
    """How many chunks of the steps of [T, *batch] are fastest, as measured on two x86-64 cores.

    One up to 4096 steps: more would be faster with one or two environments, but compile for three times as long.
    """
    steps, *batch = shape
    if not isinstance(steps, int) or steps <= MOST_STEPS:
        return 1
    lanes = LANES.get(math.prod(batch), 0)
    return lanes if steps <= lanes * MOST_STEPS else -(-steps // SHORTER)


class Chunks:
    """T steps on the first axis as `count` chunks of one length on the first two.

    Where the length does not divide T, the last chunk in scan order is filled up beyond its end.
    """

    def __init__(self, shape, count: int, reverse: bool):
        self.steps, self.reverse = shape[0], reverse
        self.length = -(-self.steps // count)
        self.count = -(-self.steps // self.length)
        self.filling = self.count * self.length - self.steps
        self.shape = (self.count, self.length, *shape[1:])

    def split(self, x):
        """x of T steps in chunks; x of one step with an axis more."""
        if x.shape[0] == 1:
            return x[None]
        ends = (self.filling, 0, 0) if self.reverse else (0, self.filling, 0)
        x = lax.pad(x, jnp.zeros((), x.dtype), [ends, *[(0, 0, 0)] * (x.ndim - 1)])
        return x.reshape(self.count, self.length, *x.shape[1:])

    def join(self, x):
        """The T steps of x in chunks."""
        first = self.filling if self.reverse else 0
        return lax.slice_in_dim(x.reshape(-1, *x.shape[2:]), first, first + self.steps)

    def source(self, source: Source) -> Source:
        """Where a loop finds what the steps of each chunk read; beyond its edge that is a step of the next chunk."""
        values, shift, beyond = source
        if beyond is None:
            return Source(self.split(values[shift:][: self.steps]))
        if shift != (1 if self.reverse else -1):  # what is read at the end that is filled up is written out before
            return Source(self.split(shifted(values.astype(beyond.dtype), shift, beyond, 0)))
        values = self.split(values)
        edge = (values[:, :1] if shift > 0 else values[:, -1:]).astype(beyond.dtype)
        edge = jnp.broadcast_to(edge, (self.count, *edge.shape[1:]))
        return Source(values, shift, shifted(edge, shift, beyond[None], 0))

    def live(self, i):
        """Is step i of each chunk one of the T, rather than one that fills the last chunk up?"""
        starts = self.length * lax.broadcasted_iota(jnp.int32, (self.count, *[1] * (len(self.shape) - 1)), 0)
        return starts + i >= self.filling if self.reverse else starts + i < self.steps
