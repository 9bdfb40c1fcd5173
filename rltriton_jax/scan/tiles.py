"""The tile that a program works on, and its choice by shape."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Tile:
    """`block` rows by `groups * slices` steps, on `warps` warps; time in `chunks` such pieces.

    Attributes:
      time: the tile's axis of time: 0 where rows lie side by side in memory, 1 where steps do.
    """

    time: int
    block: int
    groups: int
    slices: int
    warps: int
    chunks: int = 1

    CONSTANTS: ClassVar = ("TIME", "BLOCK", "GROUPS", "SLICES", "CHUNKS")

    def constants(self) -> dict[str, int]:
        return dict(zip(self.CONSTANTS, (self.time, self.block, self.groups, self.slices, self.chunks), strict=True))

    def blocks(self, rows: int) -> int:
        return -(-rows // self.block)


def _power_of_2(n: int) -> int:
    """The smallest power of 2 that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def choose_tile(steps: int, rows: int, steps_adjoin: bool, bytes_per_step: int) -> Tile:
    """The tile for `rows` rows of `steps` steps; `steps_adjoin` says that the steps of a row adjoin in memory."""
    if steps_adjoin:
        return _rows_first(steps, rows)
    return _columns(steps, rows)


def _rows_first(steps: int, rows: int) -> Tile:
    """[block, groups]: whole rows, each scanned by the threads that loaded it."""
    groups = min(_power_of_2(steps), 8192)
    chunks = -(-steps // groups)
    while groups > 1024 and rows * chunks < 132:
        groups, chunks = groups // 2, -(-steps // (groups // 2))
    block = max(1, min(1024 // groups, _power_of_2(rows)))
    warps = min(16, max(1, block * groups // 512))
    return Tile(1, block, groups, 1, warps, chunks)


def _columns(steps: int, rows: int) -> Tile:
    """[groups, block]: a few adjoining columns by many steps, composed in slices of registers."""
    block = min(32 if steps <= 128 else 16 if steps <= 512 else 8, _power_of_2(rows))
    slices = 16 if steps <= 32 else 8
    groups = _power_of_2(-(-steps // slices))
    chunks = 1
    while groups > 16 and (block * groups * slices > 16384 or -(-rows // block) * chunks < 264):
        groups //= 2
        chunks = -(-steps // (groups * slices))
    warps = min(16, max(1, block * groups * slices // 1024))
    return Tile(0, block, groups, slices, warps, chunks)
