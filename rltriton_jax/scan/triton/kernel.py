"""The one Triton kernel: algebra, scan over time, algebra, in a single pass over memory.

    rows
    ^      +-------------------------------+-------------------------------+   time is split into chunks, one a program;
    |      |             chunk             |             chunk             |   a program takes the pieces of its chunk
    |block |     piece     |     piece     |     piece     |     piece     |   one after the other, and a block of rows
    |      | group | group | group | group | group | group | group | group |
    v      +-------------------------------+-------------------------------+ > steps, in scan order

    a group:  | vector  | vector  |     of `slices` steps, which one thread of each row works on;
              | s s s s | s s s s |     an array gives or takes some of them at once, a vector

A piece by a block of rows is a tile, [groups, rows], a slice of which holds one step of each group. Groups are numbered
in scan order: a scan in reverse would exchange every number between threads, five times over. Each group's slices are
composed one after the other in registers, the groups' composites are scanned across threads, and the slices are
replayed from the state that enters their group:

    x[t] = u[t] + w[t] * x[t -+ 1]        composite of older (w1, u1) and newer (w2, u2): (w2 w1, w2 u1 + u2)

Where the steps of a row adjoin in memory, a vector is as long as one load can be; elsewhere it is one step, but of
elements so narrow that a thread had better load those of many rows. Then, and where rows begin at odd addresses, it is
a whole group, which threads load as it lies and exchange.

What the tiles have beyond the steps is padding at the far end: it comes last in scan order, so that nothing depends on
it. It reads what is at hand, and only its stores are masked. The last block of rows overlaps the one before it, and
both write the same.

Where there are several chunks, each program publishes its composite and raises a flag; one that is later in scan order
waits for the flags of those before it, which have lower program ids, and composes what they published. For composites
each program writes the one of its steps, and nothing else.

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
    if x.shape[2] == 2:
        return tl.split(x)
    else:
        return tl.split(tl.reshape(x, (x.shape[0], x.shape[1], x.shape[2] // 2, 2)))


@triton.jit
def interleaved(even, odd):
    """The inverse of `halves`."""
    x = tl.join(even, odd)
    if len(x.shape) == 3:
        return x
    else:
        return tl.reshape(x, (x.shape[0], x.shape[1], 2 * x.shape[2]))


@triton.jit
def split_vector(x, BITS: tl.constexpr):
    """The [groups, rows] tiles of one of [groups, rows, 2**BITS]."""
    tiles = (x,)
    for level in tl.static_range(BITS):
        even = ()
        odd = ()
        for i in tl.static_range(2**level):
            first, second = halves(tiles[i])
            even = even + (first,)
            odd = odd + (second,)
        tiles = even + odd
    return tiles


@triton.jit
def join_vector(tiles, BITS: tl.constexpr):
    """The inverse of `split_vector`."""
    for level in tl.static_range(BITS):
        joined = ()
        for i in tl.static_range(2 ** (BITS - 1 - level)):
            joined = joined + (interleaved(tiles[i], tiles[i + 2 ** (BITS - 1 - level)]),)
        tiles = joined
    return tiles[0]


@triton.jit
def read_sum(pointers, P: tl.constexpr, i: tl.constexpr, t, rows):
    """Read i, a sum of products that are 0 where either factor is, at each step of a vector, as [steps, rows, groups].

    Its terms lie side by side in memory. The compiler hands out threads along the first axis first, so that is the axis
    with the smallest stride: neighbouring threads then load whole sectors.
    """
    X: tl.constexpr = P.reads[i].array
    Y: tl.constexpr = P.reads[i].weights
    WIDTH: tl.constexpr = P.arrays[X].vector
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
def load_vector(pointers, P: tl.constexpr, i: tl.constexpr, t, rows):
    """The vector of operand i from step t: [groups, rows, steps], or [groups, rows] where that is one step."""
    VECTOR: tl.constexpr = P.arrays[i].vector
    if VECTOR == 1:
        return load(pointers, P, i, clamp(t, P, P.steps - 1), rows)
    elif P.steps % VECTOR == 0:
        return load(pointers, P, i, vector_steps(clamp(t, P, P.steps - VECTOR), VECTOR), rows[:, :, None])
    elif P.arrays[i].time_stride == 1:
        return load_within(pointers, P, i, vector_steps(t, VECTOR), rows[:, :, None], P.steps)
    else:
        return load(pointers, P, i, clamp(vector_steps(t, VECTOR), P, P.steps - 1), rows[:, :, None])


@triton.jit
def load_read(pointers, P: tl.constexpr, i: tl.constexpr, begin, rows):
    """All that `values_of` needs of read i from memory: the group's steps, the one beside them, the one beyond all."""
    R: tl.constexpr = P.reads[i]
    SLICES: tl.constexpr = P.tile.slices
    steps = ()
    if R.array is not None and R.unshifted is None:
        if R.per_step or R.is_sum:
            VECTORS: tl.constexpr = SLICES // P.arrays[R.array].vector
            for v in tl.static_range(VECTORS):
                t = begin + v * P.arrays[R.array].vector
                if R.is_sum:
                    steps = steps + (read_sum(pointers, P, i, t, rows),)
                else:
                    steps = steps + (load_vector(pointers, P, R.array, t, rows),)
        else:
            steps = (load(pointers, P, R.array, begin, rows),)
    edge = ()
    if R.array is not None and R.shift != 0:
        edge = (load_within(pointers, P, R.array, begin + (SLICES if R.shift == 1 else -1), rows, R.steps),)
    beyond = ()
    if R.beyond is not None:
        beyond = (load(pointers, P, R.beyond, 0, rows),)
    return steps, edge, beyond


@triton.jit
def each_step(P: tl.constexpr, i: tl.constexpr, loaded):
    """Operand or read i at each step of a group, of its vectors."""
    R: tl.constexpr = P.reads[i]
    VECTOR: tl.constexpr = P.arrays[R.array].vector
    BITS: tl.constexpr = P.arrays[R.array].vector_bits
    VECTORS: tl.constexpr = P.tile.slices // VECTOR
    steps = ()
    for v in tl.static_range(VECTORS):
        x = loaded[v]
        if R.is_sum:
            x = tl.permute(x, 2, 1, 0)
        if R.is_sum and VECTOR == 1:
            x = tl.reshape(x, (x.shape[0], x.shape[1]))
        if VECTOR == 1:
            steps = steps + (typed(x, R, P),)
        else:
            tiles = split_vector(x, BITS)
            for j in tl.static_range(VECTOR):
                steps = steps + (typed(tiles[j], R, P),)
    return steps


@triton.jit
def neighbour(P: tl.constexpr, i: tl.constexpr, j: tl.constexpr, begin, values, edge, beyond):
    """Read i, which is shifted, at step j of a group, of its operand's `values` at the group's own steps.

    A step that the group lacks is the edge, or beyond all steps. In scan order the first step of all is the first of
    its group, so that only what is shifted the other way may meet the end of all steps within one.
    """
    R: tl.constexpr = P.reads[i]
    INSIDE: tl.constexpr = j + R.shift >= 0 and j + R.shift < P.tile.slices
    END: tl.constexpr = not INSIDE or (P.steps_masked and R.shift != P.toward_entering)
    if R.array is None:
        x = values[j]
    elif INSIDE:
        x = values[j + R.shift]
    else:
        x = typed(edge[0], R, P)
    if END and R.beyond is not None:
        x = within(x, begin + j + R.shift, typed(beyond[0], R, P), R)
    elif END and INSIDE:
        x = within(x, begin + j + R.shift, typed(tl.full((1, 1), 0, P.dtype), R, P), R)
    return x


@triton.jit
def values_of(P: tl.constexpr, i: tl.constexpr, begin, loaded, reads):
    """Read i at each step of a group, of what `load_read` gave; `reads` are those before it."""
    R: tl.constexpr = P.reads[i]
    SLICES: tl.constexpr = P.tile.slices
    steps, edge, beyond = loaded
    if R.unshifted is not None:
        values = reads[R.unshifted]
    elif R.per_step or R.is_sum:
        values = each_step(P, i, steps)
    else:
        values = ()
        for j in tl.static_range(SLICES):
            if R.kind == "start":
                x = begin + j == (P.steps - 1 if P.reverse else 0)
            elif R.array is None:
                x = typed(tl.full((1, 1), 0, P.dtype), R, P)
            else:
                x = typed(steps[0], R, P)
            values = values + (x,)
    if R.shift == 0:
        return values
    else:
        shifted = ()
        for j in tl.static_range(SLICES):
            shifted = shifted + (neighbour(P, i, j, begin, values, edge, beyond),)
        return shifted


@triton.jit
def read_group(pointers, P: tl.constexpr, begin, rows):
    """Every read at each step of the groups that begin there.

    Threads may exchange what they loaded, and then wait for each other: that comes after all loads.
    """
    READS: tl.constexpr = len(P.reads)
    loaded = ()
    for i in tl.static_range(READS):
        loaded = loaded + (load_read(pointers, P, i, begin, rows),)
    reads = ()
    for i in tl.static_range(READS):
        reads = reads + (values_of(P, i, begin, loaded[i], reads),)
    return reads


@triton.jit
def at_step(P: tl.constexpr, N: tl.constexpr, reads, j: tl.constexpr, carried, i: tl.constexpr):
    """What the algebra of stage N asks for at step j of a group, which is the i-th in scan order."""
    SOURCES: tl.constexpr = P.stages[N].sources
    values = ()
    for n in tl.static_range(len(SOURCES)):
        if SOURCES[n] < len(reads):
            values = values + (reads[SOURCES[n]][j],)
        else:
            values = values + (carried[SOURCES[n] - len(reads)][i],)
    return values


@triton.jit
def carry_along(reads, carried, state, P: tl.constexpr, N: tl.constexpr, ALGEBRA):
    """The output of stage N at each step of a group in scan order, and the state that leaves the tile."""
    S: tl.constexpr = P.stages[N]
    SLICES: tl.constexpr = P.tile.slices
    SHAPE: tl.constexpr = (P.tile.groups, P.tile.block)
    steps = ()
    weights = ()
    inhomogeneous = ()
    for k in tl.static_range(SLICES):
        values = at_step(P, N, reads, SLICES - 1 - k if P.reverse else k, carried, k)
        w, u = ALGEBRA[2 * N](S.named(*values))
        w, u = tl.broadcast_to(w.to(P.dtype), SHAPE), tl.broadcast_to(u.to(P.dtype), SHAPE)
        if k == 0:
            group_w, group_u = w, u
        else:
            group_w, group_u = zero_wins(w, group_w), zero_wins(w, group_u) + u
        steps = steps + (values,)
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
        (output,) = ALGEBRA[2 * N + 1](S.named(*steps[i]), left, entering)
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
def store(outs, P: tl.constexpr, n: tl.constexpr, computed, begin, rows):
    """Result n at each step of the groups that begin there, of the (outputs, state) of each in scan order."""
    INDEX: tl.constexpr = P.results[n]
    ARRAY: tl.constexpr = P.num_operands + n
    DTYPE: tl.constexpr = outs[n].dtype.element_ty
    SLICES: tl.constexpr = P.tile.slices
    VECTOR: tl.constexpr = P.arrays[ARRAY].vector
    BITS: tl.constexpr = P.arrays[ARRAY].vector_bits
    for first in tl.static_range(0, SLICES, VECTOR):
        tiles = ()
        for j in tl.static_range(first, first + VECTOR):
            tiles = tiles + (result_of(P, computed[SLICES - 1 - j if P.reverse else j], INDEX, DTYPE),)
        t = begin + first
        if VECTOR == 1:
            at = row_offset(rows, P, ARRAY) + t * P.arrays[ARRAY].time_stride
            live = is_step(t, P)
        else:
            steps = vector_steps(t, VECTOR)
            at = row_offset(rows[:, :, None], P, ARRAY) + steps * P.arrays[ARRAY].time_stride
            live = is_step(t[:, :, None] if P.steps % VECTOR == 0 else steps, P)
        if P.steps_masked:
            tl.store(outs[n] + at, join_vector(tiles, BITS), mask=live)
        else:
            tl.store(outs[n] + at, join_vector(tiles, BITS))


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
    AT_ONCE: tl.constexpr = P.rows_at_once
    index = tl.arange(0, SPAN)
    before = index < order
    waiting = total(before.to(tl.int32), 0)
    while waiting > 0:
        raised = tl.atomic_add(flags + index * P.blocks + block, 0, mask=before, sem="acquire")
        waiting = total((before & (raised == 0)).to(tl.int32), 0)
    tl.debug_barrier()
    index, before = index[:, None], before[:, None]
    at = tl.multiple_of(index * P.rows + rows, (1, AT_ONCE))
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
    SLICES: tl.constexpr = P.tile.slices
    CARRIED: tl.constexpr = P.num_carried
    RESULTS: tl.constexpr = 0 if P.composite else len(P.results)
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
        reads = read_group(inputs, P, begin, rows)
        carried = ()
        left = ()
        for i in tl.static_range(CARRIED):
            results, state = carry_along(reads, carried, states[i], P, i, ALGEBRA)
            carried = carried + (results,)
            left = left + (state,)
        states = left
        steps = ()
        weights = ()
        inhomogeneous = ()
        for k in tl.static_range(SLICES):
            values = at_step(P, CARRIED, reads, SLICES - 1 - k if P.reverse else k, carried, k)
            w, u = COEFFICIENTS(P.named(*values))
            if P.composite and P.steps_masked:
                live = is_step(begin + (SLICES - 1 - k if P.reverse else k), P)
                w, u = tl.where(live, w, 1.0), tl.where(live, u, 0.0)
            w, u = tl.broadcast_to(w.to(P.dtype), SHAPE), tl.broadcast_to(u.to(P.dtype), SHAPE)
            if not P.finite_weights:
                u = with_nan_of(w, u)
            if k == 0:
                group_w, group_u = w, with_nan_of(w, u)
            elif P.finite_weights:
                group_w, group_u = zero_wins(w, group_w), zero_wins(w, group_u) + u
            else:
                group_w, group_u = compose(group_w, group_u, w, u)
            steps = steps + (values,)
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
        computed = ()
        for k in tl.static_range(0 if P.composite else SLICES):
            entering = state
            if P.finite_weights:
                state = inhomogeneous[k] + zero_wins(weights[k], state)
            else:
                state = apply(weights[k], inhomogeneous[k], state)
            computed = computed + ((OUTPUTS(P.named(*steps[k]), state, entering), state),)
        for n in tl.static_range(RESULTS):
            store(outs, P, n, computed, begin, rows)

    if P.composite:
        composite_w, composite_u = outs
        tl.store(composite_w + order * P.rows + rows, tl.where(carry_w == carry_w, carry_w, 0.0))
        tl.store(composite_u + order * P.rows + rows, carry)
