"""What XLA says of a sharding, as a mesh and the names of its axes.

`custom_partitioning` is asked how to split an operation when XLA has chosen the shardings of its operands and results.
Each comes as XLA's own HloSharding, whatever its user wrote, and whether Shardy or GSPMD chose:

- replicated: of arrays that are not placed on a mesh, of constants and of NumPy arrays, and where the operands'
  shardings contradict each other;
- maximal, all of it on one device; manual, unreduced and unknown: there is nothing to split by;
- tiled: an array of device numbers with an axis for each axis of the data, and perhaps one more for copies. Where it
  comes from a mesh, an axis of the data may be split over any axes of the mesh, in any order, or over a part of one
  (after a reshape), and need not divide the size: XLA fills the last parts up. Devices may also be in no mesh's order.

The user's mesh is not needed: one that fits is read off the device numbers.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rltriton_jax.scan.jax_internals import hlo_sharding


class Axes(NamedTuple):
    """The axes of a mesh over which one axis of the data is split."""

    names: tuple[str, ...]
    """The slowest first."""
    in_mesh_order: tuple[str, ...]
    """The same as their mesh has them, which is how `lax.ppermute` counts devices."""


NOT_SPLIT = Axes((), ())


class Split(NamedTuple):
    """A mesh, and for each axis of the data the names of the mesh axes that it is split over, the slowest first."""

    mesh: AbstractMesh
    names: tuple[tuple[str, ...], ...]

    def count(self, axis: int) -> int:
        """Over how many devices `axis` is split."""
        return math.prod(self.mesh.shape[name] for name in self.names[axis])

    def axes(self, axis: int) -> Axes:
        return Axes(self.names[axis], tuple(name for name in self.mesh.axis_names if name in self.names[axis]))

    def dividing(self, axis: int, size: int) -> "Split":
        """The same, but split on `axis` over only as many devices as divide `size`."""
        names = list(self.names)
        split = self
        while names[axis] and (size <= 1 or size % split.count(axis)):
            names[axis] = names[axis][:-1]
            split = Split(self.mesh, tuple(names))
        return split

    def sharding(self, shape) -> NamedSharding:
        """That of an array of the data's rank; an axis of size 1 is not split."""
        return NamedSharding(self.mesh, P(*(None if n == 1 else names or None for n, names in zip(shape, self.names))))


def _mesh(**axes: int) -> AbstractMesh:
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def whole(ndim: int, num_devices: int) -> Split:
    """No split: each device has all of it."""
    return Split(_mesh(devices=num_devices), ((),) * ndim)


def split_by_types(sharding: NamedSharding, ndim: int) -> Split:
    """The `Split` that an explicit mesh has in the types."""
    entries = (*sharding.spec, *(None,) * (ndim - len(sharding.spec)))
    names = tuple(() if e is None else e if isinstance(e, tuple) else (e,) for e in entries)
    return Split(sharding.mesh.abstract_mesh, names)


def split_by_xla(sharding: Any, ndim: int, num_devices: int) -> Split | None:
    """The `Split` of an array of `ndim` axes, without names where it is whole; None where no mesh has such an order."""
    said = hlo_sharding(sharding, ndim)
    if not said.is_tiled():
        return whole(ndim, num_devices)
    numbers = np.reshape(said.tile_assignment_devices(), said.tile_assignment_dimensions())
    digits = [_digits(np.moveaxis(numbers, axis, 0).reshape(n, -1)[:, 0]) for axis, n in enumerate(numbers.shape)]
    found = [digit for axis in digits for digit in axis]
    order = sorted(found, key=lambda digit: -digit.weight)
    if math.prod(digit.base for digit in found) != numbers.size:
        return None
    counted = np.arange(numbers.size).reshape([digit.base for digit in order])
    if not np.array_equal(counted.transpose([order.index(digit) for digit in found]).ravel(), numbers.ravel()):
        return None
    mesh = _mesh(**{digit.name: digit.base for digit in order})
    return Split(mesh, tuple(tuple(digit.name for digit in axis) for axis in digits[:ndim]))


class _Digit(NamedTuple):
    """A digit of device numbers, written with as many different bases as it takes: one axis of the mesh."""

    base: int
    weight: int

    @property
    def name(self) -> str:
        return f"every {self.weight}"


def _digits(numbers) -> list[_Digit]:
    """The digits, slowest first, that count from the first of `numbers` to the last; their bases are primes."""
    found = []
    while len(numbers) > 1:
        weight = int(numbers[1] - numbers[0])
        even = next((i for i, x in enumerate(numbers) if x != numbers[0] + i * weight), len(numbers))
        base = next(n for n in range(2, even + 1) if even % n == 0)
        found.insert(0, _Digit(base, weight))
        numbers = numbers[::base]
    return found
