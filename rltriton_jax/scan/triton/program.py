"""Everything that the kernel knows when it is compiled, by name."""

import functools
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

from rltriton_jax.scan.triton.tiles import Tile

MOST_HELD = {False: 32, True: 24}
"""How many steps, each counted once a stage, a thread has registers for; where the steps of a row adjoin, fewer."""


@dataclass(frozen=True)
class Array:
    """How to find an element of an operand or a result in memory.

    Attributes:
      time_stride: from a step to the next; 0 where the array has one step for all.
      batch_strides: from a row to the next along each of `Program.batch_sizes`; 0 where it has one row for all.
      vector: how many steps are read or written at once, a power of 2.
    """

    time_stride: int
    batch_strides: tuple[int, ...]
    vector: int = 1

    @property
    def vector_bits(self) -> int:
        """The binary logarithm of `vector`."""
        return self.vector.bit_length() - 1


@dataclass(frozen=True)
class ReadFrom:
    """A `Read` whose operands are found: `array`, `beyond` and `weights` are positions in `Program.arrays`.

    Attributes:
      kind: "value", "flag", "integer", or "start" for what is True at the first step in scan order.
      array: what is read; None reads as 0.
      shift: at which step, relative to the one that reads.
      steps: how many steps the array holds; outside them `beyond` is read, and counts as 0 if None.
      unshifted: the position in `Program.reads` of the read of the same array without a shift, if there is one.
      weights: the other factor, where this is a sum of products over a last axis.
      per_step: does the array have an element for each step?
    """

    kind: str
    array: int | None = None
    shift: int = 0
    steps: int = 0
    beyond: int | None = None
    unshifted: int | None = None
    weights: int | None = None
    per_step: bool = False

    @property
    def is_number(self) -> bool:
        return self.kind == "value"

    @property
    def is_integer(self) -> bool:
        return self.kind == "integer"

    @property
    def is_sum(self) -> bool:
        return self.weights is not None


@functools.cache
def _named(fields: tuple[str, ...]):
    return namedtuple("Reads", fields)


@dataclass(frozen=True)
class Stage:
    """What the algebra of one recurrence asks for: names, and where each is found.

    A source is a position in `Program.reads`, behind which come the results of the stages before.

    Attributes:
      is_number: is the output of a recurrence that is carried read as a number, rather than as a flag?
    """

    fields: tuple[str, ...]
    sources: tuple[int, ...]
    is_number: bool = True

    @property
    def named(self):
        """The NamedTuple of what a step reads."""
        return _named(self.fields)


@dataclass(frozen=True)
class Program:
    """One scan of `rows` sequences of `steps` steps, and the tile by which it is done.

    Attributes:
      stages: what the algebra asks for, last, and before it each recurrence whose output those behind it may read.
      reads: what a step reads, each once.
      arrays: the operands, then the results.
      num_operands: how many of `arrays` are operands.
      results: which output of the algebra each result is; None is the state itself.
      initial: the position of the operand that is the state before the first step, if there is one.
      batch_sizes: the axes over which rows are numbered, last to first.
      steps_adjoin: do the steps of a row of the result lie side by side in memory?
      terms: how many products each sum has; 1 if there is no sum.
      reverse: True where the last step is the first in scan order.
      finite_weights: is no step's weight infinite? A composite's may be.
      double: are arithmetic and state in float64, or else in float32?
      wide: do offsets need 64 bits?
      composite: are the results the composites of the programs' steps, instead of outputs?
      tile: what one program of the grid works on.
    """

    stages: tuple[Stage, ...]
    reads: tuple[ReadFrom, ...]
    arrays: tuple[Array, ...]
    num_operands: int
    results: tuple[int | None, ...]
    initial: int | None
    batch_sizes: tuple[int, ...]
    steps: int
    rows: int
    steps_adjoin: bool
    terms: int
    reverse: bool
    finite_weights: bool
    double: bool
    wide: bool
    composite: bool
    tile: Tile

    @property
    def dtype(self) -> Any:
        """The dtype of arithmetic and state, as Triton's."""
        import triton.language as tl

        return tl.float64 if self.double else tl.float32

    @property
    def num_carried(self) -> int:
        """How many recurrences are computed for what others read of them."""
        return len(self.stages) - 1

    @property
    def in_one_pass(self) -> bool:
        """Are all stages one launch? Else each has its own, where programs would wait for each other once a stage, or a
        thread would not have the registers.
        """
        alone = self.tile.chunks == 1 and self.tile.held * len(self.stages) <= MOST_HELD[self.steps_adjoin]
        return alone or not self.num_carried

    @property
    def named(self):
        """The NamedTuple of what the algebra asks for."""
        return self.stages[-1].named

    @property
    def blocks(self) -> int:
        """How many blocks of rows there are."""
        return self.tile.blocks(self.rows)

    @property
    def steps_masked(self) -> bool:
        """Do the tiles reach beyond the steps?"""
        return self.steps != self.tile.steps

    @property
    def padding_below(self) -> int:
        """How many steps before the first the tiles begin: what is padded is at the far end in scan order."""
        return self.tile.steps - self.steps if self.reverse else 0

    @property
    def split(self) -> bool:
        """Do programs wait for each other's composites?"""
        return self.tile.chunks > 1 and not self.composite

    @property
    def carries(self) -> bool:
        """Does a state enter the tile, from another piece or chunk or from before the first step?"""
        return self.tile.chunks > 1 or self.tile.pieces > 1 or self.initial is not None

    @property
    def needs_whole(self) -> bool:
        """Is the composite of all steps of the tile asked for?"""
        return self.tile.chunks > 1 or self.tile.pieces > 1 or self.composite

    @property
    def toward_entering(self) -> int:
        """The shift from a step to the one before it in scan order."""
        return 1 if self.reverse else -1

    @property
    def terms_at_once(self) -> int:
        """How many terms of a sum are loaded together."""
        return 4 if self.terms % 4 == 0 else 2 if self.terms % 2 == 0 else 1

    @property
    def span(self) -> int:
        """How many chunks are looked back over at once: a power of 2, and at least what a scan of Triton's takes.

        At least as many as there are groups, so that a thread has as many rows to load as in a tile.
        """
        return max(16, self.tile.groups, 1 << (self.tile.chunks - 1).bit_length())

    @property
    def rows_at_once(self) -> int:
        """How many rows a thread may load at once when it looks back: as many as in a tile.

        With more or fewer, the compiler has threads exchange whatever meets the state, which is everything.
        """
        tile = self.tile
        return max(1, min(tile.block, tile.held // tile.slices)) if self.rows % tile.block == 0 else 1
