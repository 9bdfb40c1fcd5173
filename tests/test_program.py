"""What the kernel is told, on the host: from shapes to a `Program`, without Triton."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from rltriton_jax.scan.recurrence import COMPOSITE, START, Read, Recurrence
from rltriton_jax.scan.triton.plan import make_plan
from rltriton_jax.scan.triton.program import Array
from rltriton_jax.scan.triton.tiles import Tile


class Reads(NamedTuple):
    reward: Any
    value: Any
    following: Any
    ended: Any
    ended_again: Any
    last: Any
    gamma: Any
    nothing: Any


def coefficients(s):
    u = s.reward + s.following - s.value + s.nothing
    return jnp.where(s.ended | s.ended_again | s.last, 0.0, s.gamma), u


READS = Reads(
    reward=Read("rewards"),
    value=Read("values"),
    following=Read("values", 1, "bootstrap"),
    ended=Read("done", kind="flag"),
    ended_again=Read("done", kind="flag"),
    last=START,
    gamma=Read("gamma"),
    nothing=Read(),
)
RECURRENCE = Recurrence(("rewards", "values", "done", "gamma", "bootstrap"), READS, coefficients)


def plan(steps=100, rows=30, axis=0, wanted=(0,), tile=None, dtype="float32", values_steps=None, reverse=False):
    at = lambda t, n: (t, n) if axis == 0 else (n, t)
    shapes = [at(steps, rows), at(values_steps or steps, rows), at(steps, rows), (1, 1), at(1, rows)]
    operands = [jax.ShapeDtypeStruct(s, jnp.bool_ if i == 2 else dtype) for i, s in enumerate(shapes)]
    recurrence = replace(RECURRENCE, reverse=reverse)
    return make_plan(recurrence, operands, time_axis=axis, dtype=jnp.dtype(dtype), wanted=wanted, tile=tile)


def program(**options):
    return plan(**options).program


def named(program, field):
    (stage,) = program.stages
    return program.reads[stage.sources[stage.fields.index(field)]]


def test_every_name_finds_what_it_reads():
    p = program()
    assert p.stages[-1].fields == Reads._fields
    assert [named(p, f).array for f in Reads._fields] == [0, 1, 1, 2, 2, None, 3, None]
    assert [named(p, f).kind for f in ("reward", "ended", "last", "nothing")] == ["value", "flag", "start", "value"]
    following = named(p, "following")
    assert (following.shift, following.steps, following.beyond) == (1, 100, 4)
    assert p.reads[following.unshifted] == named(p, "value")


def test_equal_reads_are_read_once():
    p = program()
    assert len(p.reads) == len(p.stages[-1].fields) - 1 and named(p, "ended") is named(p, "ended_again")


def test_swapping_names_changes_no_number():
    """The same reads and algebra, declared in another order."""

    class Swapped(NamedTuple):
        nothing: Any
        last: Any
        following: Any
        value: Any
        gamma: Any
        ended_again: Any
        ended: Any
        reward: Any

    swapped = Recurrence(RECURRENCE.operands, Swapped(**READS._asdict()), coefficients)
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((9, 2), (9, 2), (9, 2), (1, 1), (1, 2))]
    layout = {"time_axis": 0, "dtype": jnp.float32, "wanted": (0,)}
    first, second = (make_plan(r, shapes, **layout).program for r in (RECURRENCE, swapped))
    for field in Reads._fields:
        a, b = named(first, field), named(second, field)
        assert (a.kind, a.array, a.shift, a.beyond) == (b.kind, b.array, b.shift, b.beyond), field


def test_a_read_of_a_constant_or_of_nothing_is_not_per_step():
    p = program()
    assert not named(p, "gamma").per_step and not named(p, "nothing").per_step and named(p, "reward").per_step
    alone = named(program(steps=1), "following")
    assert alone.array is None and alone.beyond == 4  # the only step has no neighbour


def test_an_operand_of_one_step_more_is_read_as_it_lies():
    following = named(program(values_steps=101), "following")
    assert (following.steps, following.shift, following.array) == (101, 1, 1)


@pytest.mark.parametrize("axis", [0, 1])
def test_strides_are_those_of_the_layout(axis):
    p = program(axis=axis)
    steps_apart, rows_apart = (30, 1) if axis == 0 else (1, 100)
    assert p.arrays[0] == Array(steps_apart, (rows_apart,), vector=4 if axis else 1) and p.arrays[3] == Array(0, (0,))
    assert p.arrays[4] == Array(0, (1,)) and p.arrays[p.num_operands] == p.arrays[0]
    assert (p.rows, p.steps, p.batch_sizes) == (30, 100, (30,))


def test_batch_axes_that_all_arrays_step_through_as_one_are_one():
    def sizes(*shapes):
        operands = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
        return make_plan(RECURRENCE, operands, time_axis=0, dtype=jnp.float32, wanted=(0,)).program.batch_sizes

    full = [(9, 4, 5)] * 3
    assert sizes(*full, (1, 1, 1), (1, 4, 5)) == (20,)
    assert sizes(*full, (1, 1, 5), (1, 4, 5)) == (5, 4)


TILE = Tile(block=8, groups=4, slices=5, warps=2)


@pytest.mark.parametrize(
    ("steps", "tile", "padding"),
    [
        (20, TILE, 0),
        (19, TILE, 1),
        (120, Tile(8, 4, 5, 2, pieces=2, chunks=3), 0),
        (121, Tile(8, 4, 5, 2, pieces=2, chunks=4), 39),
    ],
)
def test_padding_is_at_the_far_end_in_scan_order(steps, tile, padding):
    backward, forward = (program(steps=steps, tile=tile, reverse=reverse) for reverse in (True, False))
    assert backward.steps_masked == forward.steps_masked == (padding > 0)
    assert (backward.padding_below, forward.padding_below) == (padding, 0)


def test_what_a_split_needs_is_there_only_where_time_is_split():
    whole, pieces, chunks = (Tile(8, 4, 5, 2, **k) for k in ({}, {"pieces": 5}, {"chunks": 5}))

    def facts(tile, **options):
        found = plan(tile=tile, **options)
        return found.program, len(found.scratch), found.programs

    for tile, carries, needs_whole, split, scratch, programs in (
        (whole, False, False, False, 0, 4),
        (pieces, True, True, False, 0, 4),
        (chunks, True, True, True, 3, 20),
    ):
        p, found, count = facts(tile)
        assert (p.carries, p.needs_whole, p.split, found, count) == (carries, needs_whole, split, scratch, programs)
    composite, found, _ = facts(chunks, wanted=COMPOSITE)
    assert composite.needs_whole and not composite.split and found == 0


def test_results_are_outputs_the_state_or_composites():
    state = RECURRENCE.state
    both = plan(wanted=(0, state), dtype="bfloat16")
    assert both.program.results == (0, None)
    assert [r.dtype.name for r in both.results] == ["bfloat16", "float32"]
    composites = plan(wanted=COMPOSITE, tile=Tile(8, 4, 5, 2, chunks=5))
    assert composites.program.results == () and [r.shape for r in composites.results] == [(5, 30)] * 2


@pytest.mark.parametrize(("chunks", "span"), [(1, 16), (16, 16), (17, 32), (1000, 1024)])
def test_chunks_are_looked_back_over_in_a_power_of_2(chunks, span):
    assert program(tile=Tile(8, 4, 5, 2, chunks=chunks)).span == span


@pytest.mark.parametrize(("warps", "registers", "limit"), [(2, 128, 128), (16, 128, 128), (32, 128, 64), (4, 0, 0)])
def test_a_thread_may_not_have_more_registers_than_there_are(warps, registers, limit):
    assert Tile(8, 4, 5, warps, registers=registers).register_limit == limit


def test_offsets_are_wide_where_an_array_is_large():
    assert not program(steps=2**10, rows=2**20).wide and program(steps=2**11, rows=2**20).wide


def test_a_program_can_be_a_key():
    """Triton and jax_triton key compiled kernels by it and by its text."""
    assert program() == program() and hash(program()) == hash(program()) and repr(program()) == repr(program())
    assert program() != program(rows=31) and "gamma" in repr(program())
