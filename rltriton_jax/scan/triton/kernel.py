"""The one Triton kernel: algebra, scan over time, algebra, in a single pass over memory.

    rows
    ^      +-------------------------------+-------------------------------+   time is split into chunks, one a program;
    |      |             chunk             |             chunk             |   a program takes the pieces of its chunk
    |block |     piece     |     piece     |     piece     |     piece     |   one after the other, and a block of rows
    |      | group | group | group | group | group | group | group | group |
    v      +-------------------------------+-------------------------------+ > steps, in scan order

    a group:  | vector  | vector  |     of `slices` steps, which one thread of each row works on;
              | s s s s | s s s s |     `width` of them are a vector, read and written at once

A piece by a block of rows is a tile, [groups, rows], a slice of which holds one step of each group. Groups are numbered
in scan order: a scan in reverse would exchange every number between threads, five times over. Each group's slices are
composed one after the other in registers, the groups' composites are scanned across threads, and the slices are
replayed from the state that enters their group:

    x[t] = u[t] + w[t] * x[t -+ 1]        composite of older (w1, u1) and newer (w2, u2): (w2 w1, w2 u1 + u2)

Where the steps of a row adjoin in memory, vectors have four steps; elsewhere one. Where there are several chunks, each
program publishes its composite and raises a flag; one that is later in scan order waits for the flags of those before
it, which have lower program ids, and composes what they published. For composites each program writes the one of its
steps, and nothing else.

A recurrence that is carried is a stage of its own: before the main one, and in the same way, it is composed, scanned
and replayed in each tile, and what it gives at each step is one more read of those behind it.

Everything static is in one `Program` (P), and the algebra of a stage is two functions; these are constexprs.
"""

from typing import NamedTuple

import triton
import triton.language as tl


class Rows(NamedTuple):
    """A program's rows: their numbers, the same with 0 where there is no such row, and whether there is one."""

    index: tl.tensor
    safe: tl.tensor
    live: tl.tensor


def limit_registers(most, _semantic=None, _generator=None):
    """Lets a thread have up to `most` registers; 0 leaves it to the compiler. It means nothing to the interpreter.

    This is Triton's option maxnreg, which jax_triton 0.3 cannot pass.
    """
    most = getattr(most, "value", most)
    if _generator is not None and most:
        _generator.module.set_attr("ttg.maxnreg", _semantic.builder.get_int32_attr(most))


setattr(limit_registers, tl.core.TRITON_BUILTIN, True)


@triton.jit
def apply(w, u, x):
    """u + w * x, but u where w or x is 0, whatever the other is.

    A composite's weight that is NaN, as of 0 and infinity, counts as 0 too. `with_nan_of` has put one that came from
    data into u before, so that it is not lost. What is selected is the result: multiply and add are one instruction.
    """
    return tl.where((w == 0) | (w != w) | (x == 0), u, w * x + u)


@triton.jit
def with_nan_of(w, u):
    return tl.where(w == w, u, w)


@triton.jit
def compose(w1, u1, w2, u2):
    return w2 * w1, apply(w2, u2, u1)


@triton.jit
def compose_exclusive(w1, u1, v1, p1, w2, u2, v2, p2):
    """Composites (w, u) of all elements and (v, p) of all but the newest."""
    return w2 * w1, apply(w2, u2, u1), v2 * w1, apply(v2, p2, u1)


@triton.jit
def zero_wins(w, x):
    """w * x, but 0 where w is 0. What is selected is a factor, so that to multiply and to add is one instruction."""
    return w * tl.where(w == 0, 0.0, x)


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def total(x, AXIS: tl.constexpr):
    """tl.sum, which Triton's interpreter has only where it interprets everything."""
    return tl.reduce(x, AXIS, add)


@triton.jit
def row_offset(row, P: tl.constexpr, i: tl.constexpr):
    """Where `row` begins in array i."""
    offset = row * 0
    for k in tl.static_range(len(P.batch_sizes)):
        if k == len(P.batch_sizes) - 1:
            offset += row * P.arrays[i].batch_strides[k]
        else:
            offset += (row % P.batch_sizes[k]) * P.arrays[i].batch_strides[k]
            row = row // P.batch_sizes[k]
    return offset


@triton.jit
def load(pointers, P: tl.constexpr, i: tl.constexpr, t, row, live, MASKED: tl.constexpr):
    """Operand i at steps t of `row`; where it changes with time and is `MASKED`, 0 unless `live`."""
    at = row_offset(row, P, i)
    if P.arrays[i].time_stride != 0:
        at = at + t * P.arrays[i].time_stride
        if MASKED:
            return tl.load(pointers[i] + at, mask=live, other=0)
        else:
            return tl.load(pointers[i] + at)
    else:
        return tl.load(pointers[i] + at)


@triton.jit
def typed(x, R: tl.constexpr, P: tl.constexpr):
    """What was loaded, as the algebra sees it."""
    if R.is_number:
        return x.to(P.dtype)
    elif R.is_integer:
        return x
    else:
        return x != 0


@triton.jit
def within(x, t, beyond, R: tl.constexpr):
    """x, or `beyond` where the step t that x comes from is outside the array."""
    return tl.where((t < 0) | (t >= R.steps), beyond, x)


@triton.jit
def vector_steps(t, WIDTH: tl.constexpr):
    """WIDTH steps from t, as [groups, 1, WIDTH]."""
    return t[:, :, None] + tl.arange(0, WIDTH)[None, None, :]


@triton.jit
def split_four(x):
    """The four [groups, rows] tiles of one of [groups, rows, 4]."""
    even, odd = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], 2, 2)))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return x0, x1, x2, x3


@triton.jit
def join_four(x0, x1, x2, x3):
    """The inverse of `split_four`."""
    return tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), (x0.shape[0], x0.shape[1], 4))


@triton.jit
def read_sum(pointers, P: tl.constexpr, i: tl.constexpr, t, rows):
    """Read i, a sum of products that are 0 where either factor is, at each step of a vector, as [steps, rows, groups].

    Its terms lie side by side in memory. The compiler hands out threads along the first axis first, so that is the axis
    with the smallest stride: neighbouring threads then load whole sectors.
    """
    X: tl.constexpr = P.reads[i].array
    Y: tl.constexpr = P.reads[i].weights
    WIDTH: tl.constexpr = P.tile.width
    TERMS: tl.constexpr = P.terms
    AT_ONCE: tl.constexpr = P.terms_at_once
    t = tl.permute(vector_steps(t, WIDTH), 2, 1, 0)
    row, live_row = tl.permute(rows.index[:, :, None], 2, 1, 0), tl.permute(rows.live[:, :, None], 2, 1, 0)
    live = (live_row & (t < P.steps))[:, :, :, None]
    x_at = (row_offset(row, P, X) + t * P.arrays[X].time_stride)[:, :, :, None]
    y_at = (row_offset(row, P, Y) + t * P.arrays[Y].time_stride)[:, :, :, None]
    result = tl.full((live.shape[0], live.shape[1], live.shape[2]), 0.0, P.dtype)
    for first in tl.static_range(0, TERMS, AT_ONCE):
        term = first + tl.arange(0, AT_ONCE)[None, None, None, :]
        x = pointers[X] + x_at + term
        y = pointers[Y] + y_at + term
        if P.masked:
            x, y = tl.load(x, mask=live, other=0).to(P.dtype), tl.load(y, mask=live, other=0).to(P.dtype)
        else:
            x, y = tl.load(x).to(P.dtype), tl.load(y).to(P.dtype)
        result += total(tl.where((x == 0) | (y == 0), 0.0, y * x), 3)
    return result


@triton.jit
def read(pointers, P: tl.constexpr, i: tl.constexpr, t, rows, FIRST: tl.constexpr, before):
    """Read i at steps t. `before` are the reads of the vector before this in scan order, unless this is the FIRST."""
    R: tl.constexpr = P.reads[i]
    KNOWN: tl.constexpr = not FIRST and R.shift == P.toward_entering and R.unshifted is not None
    if R.kind == "start":
        x = t == (P.steps - 1 if P.reverse else 0)
    elif KNOWN:
        _, x = before[R.unshifted]
    elif R.array is not None:
        if R.shift != 0:
            at = t + R.shift
            live = rows.live & (at >= 0) & (at < R.steps)
            x = load(pointers, P, R.array, at, rows.index, live, True)
        elif R.per_step:
            live = rows.live & (t < R.steps)
            x = load(pointers, P, R.array, t, rows.index, live, P.masked)
        else:
            x = load(pointers, P, R.array, t, rows.safe, rows.live, False)
    else:
        x = tl.full((1, 1), 0, P.dtype)
    if R.beyond is not None and (P.steps_masked or not KNOWN):
        beyond = load(pointers, P, R.beyond, 0, rows.safe, rows.live, False).to(P.dtype)
        x = within(x.to(P.dtype), t + R.shift, beyond, R)
    return typed(x, R, P)


@triton.jit
def read_four(pointers, P: tl.constexpr, i: tl.constexpr, t, rows, FIRST: tl.constexpr, before, reads):
    """Read i, of an array with an element for each step, at the steps t to t + 3, and what `read_all` says.

    `reads` are those before it at the same steps, `before` those of the vector before this, unless this is the FIRST.
    """
    R: tl.constexpr = P.reads[i]
    KNOWN: tl.constexpr = not FIRST and R.shift == P.toward_entering
    if R.unshifted is not None and R.unshifted < i:
        steps, last = reads[R.unshifted]
        x0, x1, x2, x3 = steps
    else:
        steps = vector_steps(t, 4)
        live = rows.live[:, :, None] & (steps < R.steps)
        x = load(pointers, P, R.array, steps, rows.index[:, :, None], live, P.masked)
        x0, x1, x2, x3 = split_four(typed(x, R, P))
        last = x0 if P.reverse else x3
    if R.shift != 0:
        if KNOWN:
            _, edge = before[i]
        else:
            at = t + (4 if R.shift == 1 else -1)
            live = rows.live & (at >= 0) & (at < R.steps)
            edge = typed(load(pointers, P, R.array, at, rows.index, live, True), R, P)
        if R.shift == 1:
            x0, x1, x2, x3 = x1, x2, x3, edge
        else:
            x0, x1, x2, x3 = edge, x0, x1, x2
        if R.beyond is not None:
            beyond = typed(load(pointers, P, R.beyond, 0, rows.safe, rows.live, False), R, P)
            if P.steps_masked or (R.shift == -1 and not KNOWN):
                x0 = within(x0, t + R.shift, beyond, R)
            if P.steps_masked:
                x1 = within(x1, t + 1 + R.shift, beyond, R)
                x2 = within(x2, t + 2 + R.shift, beyond, R)
            if P.steps_masked or (R.shift == 1 and not KNOWN):
                x3 = within(x3, t + 3 + R.shift, beyond, R)
    return (x0, x1, x2, x3), last


@triton.jit
def read_all(pointers, P: tl.constexpr, t, rows, FIRST: tl.constexpr, before):
    """Every read of the vector at t, as a pair: what it is at each step, and the array's last element in scan order.

    With the latter a shifted read of the next vector begins. Sums are as `read_sum` has them.
    """
    WIDTH: tl.constexpr = P.tile.width
    reads = ()
    for i in tl.static_range(len(P.reads)):
        if P.reads[i].is_sum:
            x = read_sum(pointers, P, i, t, rows)
            reads = reads + (((x,), x),)
        elif WIDTH == 4 and P.reads[i].per_step:
            reads = reads + (read_four(pointers, P, i, t, rows, FIRST, before, reads),)
        else:
            steps = ()
            for j in tl.static_range(WIDTH):
                x = read(pointers, P, i, t + j, rows, FIRST, before)
                steps = steps + (x,)
            reads = reads + ((steps, x),)
    return reads


@triton.jit
def sums_to_tile_layout(P: tl.constexpr, reads):
    """The reads, sums as the tile has its numbers. Threads wait for each other in this: it comes after all loads."""
    moved = ()
    for i in tl.static_range(len(P.reads)):
        steps, x = reads[i]
        if not P.reads[i].is_sum:
            moved = moved + (steps,)
        elif P.tile.width == 4:
            moved = moved + (split_four(tl.permute(x, 2, 1, 0)),)
        else:
            x = tl.permute(x, 2, 1, 0)
            moved = moved + ((tl.reshape(x, (x.shape[0], x.shape[1])),),)
    return moved


@triton.jit
def at_step(P: tl.constexpr, N: tl.constexpr, reads, j: tl.constexpr, carried, i: tl.constexpr):
    """What the algebra of stage N asks for at step j of a vector, the i-th of its group in scan order."""
    SOURCES: tl.constexpr = P.stages[N].sources
    values = ()
    for n in tl.static_range(len(SOURCES)):
        if SOURCES[n] < len(reads):
            values = values + (reads[SOURCES[n]][j],)
        else:
            values = values + (carried[SOURCES[n] - len(reads)][i],)
    return values


@triton.jit
def steps_alone(vector):
    """The reads of a vector without what `read_all` says beside them; sums are not in the tile's layout."""
    steps = ()
    for i in tl.static_range(len(vector)):
        steps = steps + (vector[i][0],)
    return steps


@triton.jit
def carry_along(vectors, carried, begin, state, P: tl.constexpr, N: tl.constexpr, ALGEBRA):
    """The output of stage N at each step of a group in scan order, and the state that leaves the tile."""
    S: tl.constexpr = P.stages[N]
    WIDTH: tl.constexpr = P.tile.width
    SLICES: tl.constexpr = P.tile.slices
    VECTORS: tl.constexpr = P.vectors
    SHAPE: tl.constexpr = (P.tile.groups, P.tile.block)
    reads = ()
    weights = ()
    inhomogeneous = ()
    for v in tl.static_range(VECTORS):
        vector = steps_alone(vectors[v])
        for k in tl.static_range(WIDTH):
            values = at_step(P, N, vector, WIDTH - 1 - k if P.reverse else k, carried, v * WIDTH + k)
            t = begin + (SLICES - 1 - v * WIDTH - k if P.reverse else v * WIDTH + k)
            w, u = ALGEBRA[2 * N](S.named(*values))
            if P.steps_masked:
                w, u = tl.where(t < P.steps, w, 1.0), tl.where(t < P.steps, u, 0.0)
            w, u = tl.broadcast_to(w.to(P.dtype), SHAPE), tl.broadcast_to(u.to(P.dtype), SHAPE)
            if v == 0 and k == 0:
                group_w, group_u = w, u
            else:
                group_w, group_u = zero_wins(w, group_w), zero_wins(w, group_u) + u
            reads = reads + (values,)
            weights = weights + (w,)
            inhomogeneous = inhomogeneous + (u,)
    zero = tl.full(SHAPE, 0.0, P.dtype)
    through_w, through_u, enter_w, enter_u = tl.associative_scan(
        (group_w, group_u, zero + 1.0, zero), 0, compose_exclusive
    )
    entering = apply(enter_w, enter_u, state)
    if P.tile.pieces > 1:
        last = tl.arange(0, P.tile.groups)[:, None] == P.tile.groups - 1
        whole_w = total(tl.where(last, through_w, 0.0), 0)[None, :]
        whole_u = total(tl.where(last, through_u, 0.0), 0)[None, :]
        state = apply(whole_w, whole_u, state)
    outputs = ()
    for i in tl.static_range(SLICES):
        left = inhomogeneous[i] + zero_wins(weights[i], entering)
        (output,) = ALGEBRA[2 * N + 1](S.named(*reads[i]), left, entering)
        output = tl.broadcast_to(output, SHAPE)
        outputs = outputs + (output if S.is_number else output != 0,)
        entering = left
    return outputs, state


@triton.jit
def result_of(P: tl.constexpr, computed, INDEX: tl.constexpr, DTYPE: tl.constexpr):
    """Output INDEX, or the state where that is None, of the (outputs, state) of one step."""
    outputs, state = computed
    if INDEX is None:
        return tl.broadcast_to(state, (P.tile.groups, P.tile.block)).to(DTYPE)
    else:
        return tl.broadcast_to(outputs[INDEX], (P.tile.groups, P.tile.block)).to(DTYPE)


@triton.jit
def store(outs, P: tl.constexpr, n: tl.constexpr, computed, t, rows):
    """Result n at each step of the vector at t; `computed` is the (outputs, state) of each step in scan order."""
    INDEX: tl.constexpr = P.results[n]
    ARRAY: tl.constexpr = P.num_operands + n
    DTYPE: tl.constexpr = outs[n].dtype.element_ty
    if P.tile.width == 4:
        steps = vector_steps(t, 4)
        at = row_offset(rows.index[:, :, None], P, ARRAY) + steps * P.arrays[ARRAY].time_stride
        live = rows.live[:, :, None] & (steps < P.steps)
        result = join_four(
            result_of(P, computed[3 if P.reverse else 0], INDEX, DTYPE),
            result_of(P, computed[2 if P.reverse else 1], INDEX, DTYPE),
            result_of(P, computed[1 if P.reverse else 2], INDEX, DTYPE),
            result_of(P, computed[0 if P.reverse else 3], INDEX, DTYPE),
        )
    else:
        at = row_offset(rows.index, P, ARRAY) + t * P.arrays[ARRAY].time_stride
        live = rows.live & (t < P.steps)
        result = result_of(P, computed[0], INDEX, DTYPE)
    if P.masked:
        tl.store(outs[n] + at, result, mask=live)
    else:
        tl.store(outs[n] + at, result)


@triton.jit
def publish(scratch, P: tl.constexpr, order, block, rows, whole_w, whole_u):
    """Writes the composite of this chunk, number `order` in scan order, and raises its flag."""
    scratch_w, scratch_u, flags = scratch
    tl.store(scratch_w + order * P.rows + rows.index, whole_w, mask=rows.live)
    tl.store(scratch_u + order * P.rows + rows.index, whole_u, mask=rows.live)
    tl.debug_barrier()
    tl.atomic_xchg(flags + order * P.blocks + block, 1, sem="release")


@triton.jit
def look_back(scratch, P: tl.constexpr, order, block, rows, initial):
    """The state that enters this chunk: `initial` through the composites of all chunks before it in scan order."""
    scratch_w, scratch_u, flags = scratch
    SPAN: tl.constexpr = P.span
    index = tl.arange(0, SPAN)
    before = index < order
    waiting = total(before.to(tl.int32), 0)
    while waiting > 0:
        raised = tl.atomic_add(flags + index * P.blocks + block, 0, mask=before, sem="acquire")
        waiting = total((before & (raised == 0)).to(tl.int32), 0)
    tl.debug_barrier()
    index, before = index[:, None], before[:, None]
    at = index * P.rows + rows.index
    w = tl.load(scratch_w + at, mask=before & rows.live, other=1.0, cache_modifier=".cg")
    u = tl.load(scratch_u + at, mask=before & rows.live, other=0.0, cache_modifier=".cg")
    w, u = tl.associative_scan((w, u), 0, compose)
    last = index == SPAN - 1
    w = total(tl.where(last, w, 0.0), 0)[None, :]
    u = total(tl.where(last, u, 0.0), 0)[None, :]
    return apply(w, u, initial)


@triton.jit
def scan_tile(inputs, outs, scratch, COEFFICIENTS: tl.constexpr, OUTPUTS: tl.constexpr, P: tl.constexpr, ALGEBRA):
    limit_registers(P.tile.register_limit)
    WIDTH: tl.constexpr = P.tile.width
    SLICES: tl.constexpr = P.tile.slices
    VECTORS: tl.constexpr = P.vectors
    CARRIED: tl.constexpr = P.num_carried
    REPLAYED: tl.constexpr = 0 if P.composite else P.vectors
    SHAPE: tl.constexpr = (P.tile.groups, P.tile.block)
    block, order = tl.program_id(0) % P.blocks, tl.program_id(0) // P.blocks
    chunk = P.tile.chunks - 1 - order if P.reverse else order

    row = block * P.tile.block + tl.arange(0, P.tile.block)[None, :]
    group = tl.arange(0, P.tile.groups)[:, None]
    last = group == P.tile.groups - 1
    if P.reverse:
        group = P.tile.groups - 1 - group
    if P.wide:
        row, group = row.to(tl.int64), group.to(tl.int64)
    live = row < P.rows
    rows = Rows(row, tl.where(live, row, 0) if P.rows_masked else row, live)
    zero = tl.full(SHAPE, 0.0, P.dtype)
    carry = tl.full(rows.safe.shape, 0.0, P.dtype)
    carry_w = carry + 1.0
    if P.initial is not None:
        carry += load(inputs, P, P.initial, 0, rows.safe, rows.live, False).to(P.dtype)

    states = ()
    for _ in tl.static_range(CARRIED):
        states = states + (tl.full(rows.safe.shape, 0.0, P.dtype),)

    for piece in range(P.tile.pieces):
        start = chunk * P.tile.pieces + (P.tile.pieces - 1 - piece if P.reverse else piece)
        begin = start * P.tile.piece_steps + group * SLICES
        vector = ()
        vectors = ()
        for v in tl.static_range(VECTORS):
            vector = read_all(inputs, P, begin + (VECTORS - 1 - v if P.reverse else v) * WIDTH, rows, v == 0, vector)
            vectors = vectors + (vector,)
        carried = ()
        left = ()
        for i in tl.static_range(CARRIED):
            results, state = carry_along(vectors, carried, begin, states[i], P, i, ALGEBRA)
            carried = carried + (results,)
            left = left + (state,)
        states = left
        reads = ()
        weights = ()
        inhomogeneous = ()
        for v in tl.static_range(VECTORS):
            vector = sums_to_tile_layout(P, vectors[v])
            for k in tl.static_range(WIDTH):
                values = at_step(P, CARRIED, vector, WIDTH - 1 - k if P.reverse else k, carried, v * WIDTH + k)
                t = begin + (SLICES - 1 - v * WIDTH - k if P.reverse else v * WIDTH + k)
                w, u = COEFFICIENTS(P.named(*values))
                if P.steps_masked:
                    w, u = tl.where(t < P.steps, w, 1.0), tl.where(t < P.steps, u, 0.0)
                w, u = tl.broadcast_to(w.to(P.dtype), SHAPE), tl.broadcast_to(u.to(P.dtype), SHAPE)
                if not P.finite_weights:
                    u = with_nan_of(w, u)
                if v == 0 and k == 0:
                    group_w, group_u = w, with_nan_of(w, u)
                elif P.finite_weights:
                    group_w, group_u = zero_wins(w, group_w), zero_wins(w, group_u) + u
                else:
                    group_w, group_u = compose(group_w, group_u, w, u)
                reads = reads + (values,)
                weights = weights + (w,)
                inhomogeneous = inhomogeneous + (u,)

        through_w, through_u, enter_w, enter_u = tl.associative_scan(
            (group_w, group_u, zero + 1.0, zero), 0, compose_exclusive
        )
        if P.needs_whole:
            whole_w = total(tl.where(last, through_w, 0.0), 0)[None, :]
            whole_u = total(tl.where(last, through_u, 0.0), 0)[None, :]
        if P.split:
            publish(scratch, P, order, block, rows, whole_w, whole_u)
            carry = look_back(scratch, P, order, block, rows, carry)

        state = enter_u
        if P.carries:
            state = apply(enter_w, enter_u, carry)
        if P.tile.pieces > 1 or P.composite:
            carry = apply(whole_w, whole_u, carry)
            carry_w = whole_w * carry_w
        for v in tl.static_range(REPLAYED):
            computed = ()
            for k in tl.static_range(WIDTH):
                entering = state
                if P.finite_weights:
                    state = inhomogeneous[v * WIDTH + k] + zero_wins(weights[v * WIDTH + k], state)
                else:
                    state = apply(weights[v * WIDTH + k], inhomogeneous[v * WIDTH + k], state)
                s = P.named(*reads[v * WIDTH + k])
                computed = computed + ((OUTPUTS(s, state, entering), state),)
            t = begin + (VECTORS - 1 - v if P.reverse else v) * WIDTH
            for n in tl.static_range(len(P.results)):
                store(outs, P, n, computed, t, rows)

    if P.composite:
        composite_w, composite_u = outs
        tl.store(composite_w + order * P.rows + rows.index, tl.where(carry_w == carry_w, carry_w, 0.0), mask=rows.live)
        tl.store(composite_u + order * P.rows + rows.index, carry, mask=rows.live)
