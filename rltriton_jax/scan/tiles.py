"""The tile that a program works on, and its choice by shape."""

from dataclasses import dataclass, replace
from typing import ClassVar


@dataclass(frozen=True)
class Tile:
    """`block` rows by `groups * slices` steps on `warps` warps, `pieces` times over; time is `chunks` of that.

    Attributes:
      width: how many steps are read at once: 4 where the steps of a row adjoin in memory, 1 where rows do. `slices` is
        a multiple of it.
      edge_once: only the first slice looks for the row beyond the window, as no other can meet it. Registers are given
        out so differently then that most tiles are slower.
    """

    width: int
    block: int
    groups: int
    slices: int
    warps: int
    chunks: int = 1
    pieces: int = 1
    edge_once: bool = False

    CONSTANTS: ClassVar = ("WIDTH", "BLOCK", "GROUPS", "SLICES", "PIECES", "CHUNKS", "EDGE_ONCE")

    def constants(self) -> dict[str, int]:
        return dict(zip(self.CONSTANTS, self._sizes(), strict=True))

    def _sizes(self):
        return self.width, self.block, self.groups, self.slices, self.pieces, self.chunks, self.edge_once

    def blocks(self, rows: int) -> int:
        return -(-rows // self.block)


def _power_of_2(n: int) -> int:
    """The smallest power of 2 that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def choose_tile(steps: int, rows: int, steps_adjoin: bool, streams: int) -> Tile:
    """The tile for `rows` rows of `steps` steps.

    `steps_adjoin` says that the steps of a row adjoin in memory; `streams` is how many numbers a step moves.
    What decides is how many steps a thread holds: enough loads in flight to hide the latency of memory, few enough
    registers that several programs share a multiprocessor. Measured on one NVIDIA H200, float32 GAE, as the ratio to an
    elementwise pass over the same bytes; (block, groups, slices, warps), then pieces or chunks:

        rows x steps     steps adjoin                       rows adjoin
        65536 x 32       (8, 32, 1, 2) 1.08                 (32, 4, 8, 4) 1.09, (32, 1, 32, 1) 1.37
        4096 x 128       (2, 128, 1, 2) 1.17                (32, 16, 8, 8) 1.26, (8, 16, 8, 4) 1.37
        16384 x 512      (1, 512, 1, 4) 1.09, 1 warp 1.22   (32, 4, 16, 4) in 8 pieces 1.15, (16, 64, 8, 8) 1.60
        512 x 4096       (1, 4096, 1, 8) 1.44, 4 warps 1.6  (8, 32, 16, 4) in 8 chunks 1.67, (8, 64, 8, 4) 2.2
        64 x 8192        (1, 8192, 1, 16) 2.1               (8, 32, 16, 8) in 16 chunks 2.2
        8 x 131072       (1, 4096, 1, 4) in 32 chunks 2.5   (8, 64, 16, 16) in 128 chunks 2.1, in 256 2.8

    With two arrays in and one out, rows adjoining: 4096 x 128 (16, 16, 8, 8) 1.17 to 1.23, (32, 16, 8, 8) 1.23 to 1.34;
    16384 x 512 (32, 8, 16, 8) in 4 pieces 1.06 to 1.09, (32, 4, 16, 4) in 8 pieces 1.05 to 1.19.

    V-trace: 8 x 131072, steps adjoining, (1, 4096, 1, 8) in 32 chunks 3.2, 16 warps 3.5; 16384 x 512, rows adjoining,
    (32, 4, 8, 4) in 16 pieces 1.23, with `edge_once` 1.10, which takes GAE from 1.27 to 1.38 at 4096 x 128.

    Retrace that sums 4 actions, rows adjoining: 65536 x 32 (32, 8, 4, 8) 0.77, (32, 2, 16, 2) 1.20; 4096 x 128
    (16, 32, 4, 16) 0.80, (16, 16, 8, 8) 0.82; 512 x 4096 (8, 64, 4, 16) in 16 chunks 1.09, (8, 32, 8, 8) in 16 chunks
    1.39; 64 x 8192 (8, 64, 4, 16) in 32 chunks 1.17, (8, 32, 8, 8) in 32 chunks 1.35.
    """
    return _whole_rows(steps, rows, streams >= 6) if steps_adjoin else _columns(steps, rows, streams)


MAX_CHUNKS = 1024
"""More chunks than this are not looked back over; the rows are then taken in pieces, slowly."""


def _split(steps: int, tile: Tile) -> Tile:
    """The tile over all of `steps`, split in chunks."""
    parts = -(-steps // (tile.groups * tile.slices))
    return replace(tile, chunks=parts) if parts <= MAX_CHUNKS else replace(tile, pieces=parts)


def _warps(tile: Tile, held: int) -> Tile:
    """Enough warps that each thread holds at most `held` steps, 16 at most."""
    return replace(tile, warps=max(1, min(16, tile.block * tile.groups * tile.slices // (32 * held))))


def _whole_rows(steps: int, rows: int, heavy: bool) -> Tile:
    """Rows whose steps lie side by side: each thread loads and composes some that adjoin, and threads are scanned."""
    longest = 4096 if heavy or steps > 32768 else 8192
    slices = 4 if steps <= 512 else 8 if heavy and steps <= 32768 else 16
    groups = min(_power_of_2(-(-steps // slices)), longest // slices)
    block = min(max(1, 64 // groups), _power_of_2(rows))
    return _split(steps, _warps(Tile(4, block, groups, slices, 1), slices))


def _columns(steps: int, rows: int, streams: int) -> Tile:
    """[groups, block]: adjoining rows by many steps, composed in slices of registers; 8 rows are a memory sector."""
    light, heavy, sums = streams <= 3, streams >= 6, streams >= 10  # the last are weighted sums, as a rule
    if steps <= 32:
        slices = 4 if sums else 16 if heavy and steps > 8 else 8
        tile = Tile(1, min(32, _power_of_2(rows)), _power_of_2(-(-steps // slices)), slices, 1)
        return _warps(tile, 4 if sums else 16 if heavy else 8)
    if steps <= 256 and rows >= 1024:
        slices = 4 if sums else 8
        tile = Tile(1, 16 if heavy or light else 32, _power_of_2(-(-steps // slices)), slices, 1)
        return _warps(tile, 4 if sums else 8 if heavy or light else 16)
    if rows >= 32 * 256:
        slices, groups = 8 if heavy else 16, 8 if light else 4
        return Tile(1, 32, groups, slices, groups, pieces=-(-steps // (groups * slices)), edge_once=heavy)
    if sums and steps <= 32768:
        groups = min(_power_of_2(-(-steps // 4)), 64)
        return _warps(_split(steps, Tile(1, min(8, _power_of_2(rows)), groups, 4, 1)), 4)
    slices = 8 if heavy else 16
    most = 32 if steps <= 32768 else 1024 // slices
    groups = min(_power_of_2(-(-steps // slices)), most)
    tile = _split(steps, Tile(1, min(8, _power_of_2(rows)), groups, slices, 1))
    crowded = tile.blocks(rows) * tile.chunks >= 256 and steps <= 32768
    return _warps(tile, 32 if crowded and not heavy else 8 if heavy else 16)
