"""The tile that a program works on, and its choice by shape."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Tile:
    """What one program of the grid works on, and how it is divided; `kernel` has a picture.

    Attributes:
      block: how many rows.
      groups: how many groups of steps; a group is what one thread of each row works on.
      slices: how many steps a group has.
      warps: how many warps share the work.
      chunks: into how many parts time is split, each for a program of its own.
      pieces: how many tiles a program takes one after the other.
      registers: how many a thread may have; 0 leaves it to the compiler, which saves registers so that more programs
        share a multiprocessor, and for that starts loads later.
    """

    block: int
    groups: int
    slices: int
    warps: int
    chunks: int = 1
    pieces: int = 1
    registers: int = 128

    @property
    def piece_steps(self) -> int:
        """How many steps a program takes at once."""
        return self.groups * self.slices

    @property
    def steps(self) -> int:
        """How many steps all programs of a block of rows take."""
        return self.piece_steps * self.pieces * self.chunks

    @property
    def register_limit(self) -> int:
        """What a thread may have of the 2**16 registers of a multiprocessor."""
        return min(self.registers, 2**16 // (32 * self.warps))

    @property
    def held(self) -> int:
        """How many steps a thread holds at once."""
        return self.block * self.piece_steps // (32 * self.warps)

    def blocks(self, rows: int) -> int:
        return -(-rows // self.block)


def _power_of_2(n: int) -> int:
    """The smallest power of 2 that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def choose_tile(steps: int, rows: int, steps_adjoin: bool, streams: int, carried: int) -> Tile:
    """The tile for `rows` rows of `steps` steps.

    `steps_adjoin` says that the steps of a row adjoin in memory; `streams` is how many numbers a step moves; `carried`,
    how many recurrences are carried beside the one whose results are stored, or were, in launches of their own.
    What decides is how many steps a thread holds: enough loads in flight to hide the latency of memory, few enough
    registers that several programs share a multiprocessor. Measured on one NVIDIA H200, float32 GAE, as the ratio to an
    elementwise pass over the same bytes, by a kernel that still masked its padding; (block, groups, slices, warps),
    then pieces or chunks, with 128 registers or, after the stroke, as many as the compiler chooses:

        rows x steps     steps adjoin                              rows adjoin
        65536 x 32       (16, 8, 4, 4) 1.07, (16, 4, 8, 2) 1.11    (32, 4, 8, 4) 1.04 / 1.07, (32, 2, 16, 2) 1.05
        4096 x 128       (4, 32, 4, 4) 1.05, (4, 16, 8, 2) 1.07    (16, 16, 8, 8) 1.16 / 1.24, (32, 16, 8, 16) 1.20
        16384 x 512      (1, 128, 4, 4) 1.03, (1, 64, 8, 2) 1.10   (32, 4, 16, 4) in 8 pieces 1.06 / 1.47
        512 x 4096       (1, 512, 8, 16) 1.21 to 1.37              (16, 32, 16, 8) in 8 chunks 1.53, (8, 32, 16, 4) 1.65
        64 x 8192        (1, 1024, 8, 16) 1.75, in 2 chunks 2.04   (8, 32, 16, 8) in 16 chunks 2.17
        8 x 131072       (1, 512, 8, 8) in 32 chunks 2.17          (8, 64, 16, 16) in 128 chunks 2.18

    V-trace, rows adjoining: 512 x 4096 (8, 32, 16, 8) in 8 chunks 1.85, (8, 32, 16, 4) 4.4; 8 x 131072 (8, 128, 8, 16)
    in 128 chunks 2.4, (8, 64, 16, 16) 4.8.

    Retrace that sums 4 actions, rows adjoining, with as many registers as the compiler chooses: 65536 x 32 (32, 8, 4,
    8) 0.77, (32, 2, 16, 2) 1.20; 4096 x 128 (16, 32, 4, 16) 0.78, with 128 registers 0.93; 16384 x 512 (32, 4, 8, 4)
    in 16 pieces 0.84, with 128 registers 0.95; 512 x 4096 (8, 64, 4, 16) in 16 chunks 1.03, with 128 registers 1.38.
    Steps adjoining: 512 x 4096 (1, 1024, 4, 32) 0.93, (1, 512, 8, 16) 1.05; 64 x 8192 the same two in 2 chunks 1.18
    and 1.16.

    V-trace with `valid`, which carries one recurrence, 16384 x 512, rows adjoining: 56.6 us, with 8 slices 61.7.
    """
    heavy, sums = streams >= 6, streams >= 10  # the last are weighted sums, as a rule
    return _whole_rows(steps, rows, sums, carried) if steps_adjoin else _columns(steps, rows, heavy, sums, carried)


MAX_CHUNKS = 1024
"""More chunks than this are not looked back over; the rows are then taken in pieces, slowly."""


def _split(steps: int, tile: Tile) -> Tile:
    """The tile over all of `steps`, split in chunks."""
    parts = -(-steps // tile.piece_steps)
    return replace(tile, chunks=parts) if parts <= MAX_CHUNKS else replace(tile, pieces=parts)


def _warps(tile: Tile, held: int) -> Tile:
    """Enough warps that each thread holds at most `held` steps, 32 at most."""
    return replace(tile, warps=max(1, min(32, tile.block * tile.piece_steps // (32 * held))))


def _whole_rows(steps: int, rows: int, sums: bool, carried: int) -> Tile:
    """Rows whose steps lie side by side: each thread loads and composes some that adjoin, and threads are scanned."""
    longest = 4096 if sums or carried or steps > 32768 else 8192
    aligned = steps % 4 == 0
    held = 4 if sums or (steps <= 512 and aligned) else 8 if carried or steps <= 4096 else 16
    slices = min(held, 8)
    groups = min(_power_of_2(-(-steps // slices)), longest // slices)
    block = min(max(1, 128 // groups), _power_of_2(rows))
    return _warps(_split(steps, Tile(block, groups, slices, 1)), held)


def _fitted(steps: int, tile: Tile) -> Tile:
    """The tile with as few slices as reach over all steps."""
    return replace(tile, slices=-(-steps // (tile.groups * tile.pieces * tile.chunks)))


def _columns(steps: int, rows: int, heavy: bool, sums: bool, carried: int) -> Tile:
    """[groups, block]: adjoining rows by many steps, composed in slices of registers; 8 rows are a memory sector."""
    if steps <= 32 or (steps <= 256 and rows >= 1024):
        slices = 4 if sums else 8
        groups = _power_of_2(-(-steps // slices))
        if steps < groups * slices and groups > 1 and carried <= 1:
            groups //= 2  # of more slices, which fit better
        block = min(32 if steps <= 32 else 16, _power_of_2(rows))
        tile = _warps(Tile(block, groups, slices, 1), slices)
    elif rows >= 32 * 256:
        slices = 8 if sums or carried > 1 else 16
        tile = Tile(32, 4, slices, 4, pieces=-(-steps // (4 * slices)))
    else:
        if steps > 32768:
            slices, most, held = (4, 64, 8) if carried > 1 else (8, 128, 16) if heavy else (16, 64, 16)
        else:
            slices, most, held = (4, 64, 4) if sums else (16, 32, 16)
        groups = min(_power_of_2(-(-steps // slices)), most)
        tile = _split(steps, Tile(min(8, _power_of_2(rows)), groups, slices, 1))
        if steps <= 32768 and not heavy and tile.blocks(rows) * tile.chunks >= 256:
            tile, held = replace(tile, block=2 * tile.block), 32
        tile = _warps(tile, held)
    return replace(_fitted(steps, tile), registers=0 if sums else tile.registers)
