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

Where the steps of a row adjoin in memory, vectors have four steps or eight; elsewhere one. What the tiles have beyond the
steps is padding at the far end, which comes last in scan order: nothing depends on it, so that it needs no identities.
It reads what is at hand, and only stores are masked. The last block of rows overlaps the one before it, and both write
the same. Where there are several chunks, each program publishes its composite and raises a flag; one that is later in scan order waits for the flags of those before
it, which have lower program ids, and composes what they published. For composites each program writes the one of its
steps, and nothing else.

A recurrence that is carried is a stage of its own: before the main one, and in the same way, it is composed, scanned
and replayed in each tile, and what it gives at each step is one more read of those behind it.

Everything static is in one `Program` (P), and the algebra of a stage is two functions; these are constexprs.
"""

import triton
import triton.language as tl


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
def load(pointers, P: tl.constexpr, i: tl.constexpr, t, row):
    """Operand i at steps t of `row`."""
    at = row_offset(row, P, i)
    if P.arrays[i].time_stride != 0:
        at = at + t * P.arrays[i].time_stride
    return tl.load(pointers[i] + at)


@triton.jit
def load_within(pointers, P: tl.constexpr, i: tl.constexpr, t, row, STEPS: tl.constexpr):
    """The same, but 0 where t is none of the STEPS that the operand has."""
    at = row_offset(row, P, i) + t * P.arrays[i].time_stride
    return tl.load(pointers[i] + at, mask=(t >= 0) & (t < STEPS), other=0)


@triton.jit
def clamp(t, P: tl.constexpr, LAST: tl.constexpr):
    """t, but where it is padding the last that is none: 0 in reverse, else LAST."""
    if not P.steps_masked:
        return t
    elif P.reverse:
        return tl.maximum(t, 0)
    else:
        return tl.minimum(t, LAST)


@triton.jit
def is_step(t, P: tl.constexpr):
    """Is t no padding?"""
    return t >= 0 if P.reverse else t < P.steps


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
def halves(x):
    """The tiles [groups, rows, n / 2] of one of [groups, rows, n] that have its even and its odd entries."""
    return tl.split(tl.reshape(x, (x.shape[0], x.shape[1], x.shape[2] // 2, 2)))


@triton.jit
def split_four(x):
    """The four [groups, rows] tiles of one of [groups, rows, 4]."""
    even, odd = halves(x)
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return x0, x1, x2, x3


@triton.jit
def split_vector(x):
    """The [groups, rows] tiles of one of [groups, rows, n], with n = 4 or 8."""
    if x.shape[2] == 4:
        return split_four(x)
    else:
        even, odd = halves(x)
        x0, x2, x4, x6 = split_four(even)
        x1, x3, x5, x7 = split_four(odd)
        return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def interleaved(even, odd):
    """The inverse of `halves`."""
    return tl.reshape(tl.join(even, odd), (even.shape[0], even.shape[1], 2 * even.shape[2]))


@triton.jit
def join_four(x0, x1, x2, x3):
    """The inverse of `split_four`."""
    return interleaved(tl.join(x0, x2), tl.join(x1, x3))


@triton.jit
def join_vector(x):
    """The inverse of `split_vector`."""
    if len(x) == 4:
        return join_four(x[0], x[1], x[2], x[3])
    else:
        return interleaved(join_four(x[0], x[2], x[4], x[6]), join_four(x[1], x[3], x[5], x[7]))


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
    t = tl.permute(clamp(vector_steps(t, WIDTH), P, P.steps - 1), 2, 1, 0)
    row = tl.permute(rows[:, :, None], 2, 1, 0)
    x_at = (row_offset(row, P, X) + t * P.arrays[X].time_stride)[:, :, :, None]
    y_at = (row_offset(row, P, Y) + t * P.arrays[Y].time_stride)[:, :, :, None]
    result = tl.full((WIDTH, P.tile.block, P.tile.groups), 0.0, P.dtype)
    for first in tl.static_range(0, TERMS, AT_ONCE):
        term = first + tl.arange(0, AT_ONCE)[None, None, None, :]
        x = tl.load(pointers[X] + x_at + term).to(P.dtype)
        y = tl.load(pointers[Y] + y_at + term).to(P.dtype)
        result += total(tl.where((x == 0) | (y == 0), 0.0, y * x), 3)
    return result


@triton.jit
def read(pointers, P: tl.constexpr, i: tl.constexpr, t, rows, FIRST: tl.constexpr, before):
    """Read i at steps t. `before` are the reads of the vector before this in scan order, unless this is the FIRST.

    Only the FIRST has a step that none comes before in scan order.
    """
    R: tl.constexpr = P.reads[i]
    AHEAD: tl.constexpr = R.shift == P.toward_entering
    EDGE: tl.constexpr = R.shift != 0 and R.array is not None and (FIRST or not AHEAD)
    if R.kind == "start":
        x = t == (P.steps - 1 if P.reverse else 0)
    elif AHEAD and not FIRST and R.unshifted is not None:
        x = before[R.unshifted][0]
    elif R.array is None:
        x = tl.full((1, 1), 0, P.dtype)
    elif EDGE:
        x = load_within(pointers, P, R.array, t + R.shift, rows, R.steps)
    elif R.per_step:
        x = load(pointers, P, R.array, clamp(t + R.shift, P, R.steps - 1), rows)
    else:
        x = load(pointers, P, R.array, t, rows)
    if R.beyond is not None and (FIRST or not AHEAD):
        x = within(x.to(P.dtype), t + R.shift, load(pointers, P, R.beyond, 0, rows).to(P.dtype), R)
    return typed(x, R, P)


@triton.jit
def load_vector(pointers, P: tl.constexpr, i: tl.constexpr, t, rows, FIRST: tl.constexpr):
    """What read i loads, of an array with an element for each step, at the vector from t: [groups, rows, steps].

    Beside it, if the read is shifted, the step that the vector lacks, where the vector before in scan order has it not.
    """
    R: tl.constexpr = P.reads[i]
    WIDTH: tl.constexpr = P.tile.width
    loaded = ()
    if R.unshifted is None:
        if P.straddles:
            steps = vector_steps(t, WIDTH)
            loaded = loaded + (load_within(pointers, P, R.array, steps, rows[:, :, None], R.steps),)
        else:
            steps = vector_steps(clamp(t, P, P.steps - WIDTH), WIDTH)
            loaded = loaded + (load(pointers, P, R.array, steps, rows[:, :, None]),)
    if R.shift != 0 and (FIRST or R.shift != P.toward_entering):
        edge = load_within(pointers, P, R.array, t + (WIDTH if R.shift == 1 else -1), rows, R.steps)
        loaded = loaded + (edge,)
    return loaded


@triton.jit
def arrange(pointers, P: tl.constexpr, i: tl.constexpr, t, rows, loaded, FIRST: tl.constexpr, before, reads):
    """Read i at each step of the vector from t, of what `load_vector` gave.

    `before` are the reads of the vector before this, unless this is the FIRST, and `reads` those before i of this one.
    """
    R: tl.constexpr = P.reads[i]
    WIDTH: tl.constexpr = P.tile.width
    AHEAD: tl.constexpr = R.shift == P.toward_entering
    AT: tl.constexpr = 0 if R.unshifted is not None else 1
    if R.unshifted is not None:
        steps = reads[R.unshifted]
    else:
        steps = split_vector(typed(loaded[0], R, P))
    if R.shift == 0:
        return steps
    else:
        if AHEAD and not FIRST:
            edge = before[i] if R.unshifted is None else before[R.unshifted]
            edge = edge[0 if P.reverse else WIDTH - 1]
        else:
            edge = typed(loaded[AT], R, P)
        shifted = ()
        for j in tl.static_range(WIDTH):
            INSIDE: tl.constexpr = j + R.shift >= 0 and j + R.shift < WIDTH
            x = edge
            if INSIDE:
                x = steps[j + R.shift]
            if R.beyond is not None and ((not INSIDE and (FIRST or not AHEAD)) or (P.straddles and not AHEAD)):
                beyond = typed(load(pointers, P, R.beyond, 0, rows), R, P)
                x = within(x, t + j + R.shift, beyond, R)
            shifted = shifted + (x,)
        return shifted


@triton.jit
def read_all(pointers, P: tl.constexpr, t, rows, FIRST: tl.constexpr, before):
    """Every read of the vector at t: what it is at each step, or else what `arranged` makes that of."""
    WIDTH: tl.constexpr = P.tile.width
    reads = ()
    for i in tl.static_range(len(P.reads)):
        if P.reads[i].is_sum:
            reads = reads + (read_sum(pointers, P, i, t, rows),)
        elif WIDTH > 1 and P.reads[i].per_step:
            reads = reads + (load_vector(pointers, P, i, t, rows, FIRST),)
        else:
            steps = ()
            for j in tl.static_range(WIDTH):
                steps = steps + (read(pointers, P, i, t + j, rows, FIRST, before),)
            reads = reads + (steps,)
    return reads


@triton.jit
def arranged(pointers, P: tl.constexpr, t, rows, loaded, FIRST: tl.constexpr, before):
    """Every read at each step of the vector at t, of what `read_all` gave.

    Threads may exchange numbers in this, and wait for each other: it comes after all loads.
    """
    WIDTH: tl.constexpr = P.tile.width
    reads = ()
    for i in tl.static_range(len(P.reads)):
        if P.reads[i].is_sum:
            x = tl.permute(loaded[i], 2, 1, 0)
            if WIDTH == 1:
                reads = reads + ((tl.reshape(x, (x.shape[0], x.shape[1])),),)
            else:
                reads = reads + (split_vector(x),)
        elif WIDTH > 1 and P.reads[i].per_step:
            reads = reads + (arrange(pointers, P, i, t, rows, loaded[i], FIRST, before, reads),)
        else:
            reads = reads + (loaded[i],)
    return reads


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
        for k in tl.static_range(WIDTH):
            values = at_step(P, N, vectors[v], WIDTH - 1 - k if P.reverse else k, carried, v * WIDTH + k)
            w, u = ALGEBRA[2 * N](S.named(*values))
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
    WIDTH: tl.constexpr = P.tile.width
    if WIDTH == 1:
        steps = t
        at = row_offset(rows, P, ARRAY) + t * P.arrays[ARRAY].time_stride
        result = result_of(P, computed[0], INDEX, DTYPE)
    else:
        steps = vector_steps(t, WIDTH)
        at = row_offset(rows[:, :, None], P, ARRAY) + steps * P.arrays[ARRAY].time_stride
        result = ()
        for k in tl.static_range(WIDTH):
            result = result + (result_of(P, computed[WIDTH - 1 - k if P.reverse else k], INDEX, DTYPE),)
        result = join_vector(result)
    if P.steps_masked:
        tl.store(outs[n] + at, result, mask=is_step(steps if P.straddles or WIDTH == 1 else t[:, :, None], P))
    else:
        tl.store(outs[n] + at, result)


@triton.jit
def publish(scratch, P: tl.constexpr, order, block, rows, whole_w, whole_u):
    """Writes the composite of this chunk, number `order` in scan order, and raises its flag."""
    scratch_w, scratch_u, flags = scratch
    tl.store(scratch_w + order * P.rows + rows, whole_w)
    tl.store(scratch_u + order * P.rows + rows, whole_u)
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
    at = index * P.rows + rows
    w = tl.load(scratch_w + at, mask=before, other=1.0, cache_modifier=".cg")
    u = tl.load(scratch_u + at, mask=before, other=0.0, cache_modifier=".cg")
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

    rows = tl.arange(0, P.tile.block)[None, :]
    if P.rows < P.tile.block:
        rows = tl.minimum(rows, P.rows - 1)
    elif P.rows % P.tile.block == 0:
        rows = block * P.tile.block + rows
    else:
        rows = tl.minimum(block * P.tile.block, P.rows - P.tile.block) + rows
    group = tl.arange(0, P.tile.groups)[:, None]
    last = group == P.tile.groups - 1
    if P.reverse:
        group = P.tile.groups - 1 - group
    if P.wide:
        rows, group = rows.to(tl.int64), group.to(tl.int64)
    zero = tl.full(SHAPE, 0.0, P.dtype)
    carry = tl.full(rows.shape, 0.0, P.dtype)
    carry_w = carry + 1.0
    if P.initial is not None:
        carry += load(inputs, P, P.initial, 0, rows).to(P.dtype)

    states = ()
    for _ in tl.static_range(CARRIED):
        states = states + (tl.full(rows.shape, 0.0, P.dtype),)

    for piece in range(P.tile.pieces):
        start = chunk * P.tile.pieces + (P.tile.pieces - 1 - piece if P.reverse else piece)
        begin = start * P.tile.piece_steps + group * SLICES - P.padding_below
        vector = ()
        loaded = ()
        for v in tl.static_range(VECTORS):
            vector = read_all(inputs, P, begin + (VECTORS - 1 - v if P.reverse else v) * WIDTH, rows, v == 0, vector)
            loaded = loaded + (vector,)
        vector = ()
        vectors = ()
        for v in tl.static_range(VECTORS):
            t = begin + (VECTORS - 1 - v if P.reverse else v) * WIDTH
            vector = arranged(inputs, P, t, rows, loaded[v], v == 0, vector)
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
            for k in tl.static_range(WIDTH):
                values = at_step(P, CARRIED, vectors[v], WIDTH - 1 - k if P.reverse else k, carried, v * WIDTH + k)
                t = begin + (SLICES - 1 - v * WIDTH - k if P.reverse else v * WIDTH + k)
                w, u = COEFFICIENTS(P.named(*values))
                if P.composite and P.steps_masked:
                    w, u = tl.where(is_step(t, P), w, 1.0), tl.where(is_step(t, P), u, 0.0)
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
        tl.store(composite_w + order * P.rows + rows, tl.where(carry_w == carry_w, carry_w, 0.0))
        tl.store(composite_u + order * P.rows + rows, carry)
