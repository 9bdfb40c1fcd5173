"""The one Triton kernel: algebra, scan over time, algebra, in a single pass over memory.

A program takes a tile of `rows` (batch elements) by `groups * slices` steps; groups are numbered in scan order. Each
group's slices are composed serially in registers, the groups' composites are scanned across threads, and the slices are
replayed from the state that enters their group:

    x[t] = u[t] + w[t] * x[t -+ 1]        composite of older (w1, u1) and newer (w2, u2): (w2 w1, w2 u1 + u2)

Where the steps of a row adjoin in memory (WIDTH 4), slices are read and written four at a time. Numbering groups in
scan order costs nothing there, while a scan in reverse would exchange every number between threads, five times over.

Where time is split over programs, each publishes its composite and raises a flag; one that is later in scan order waits
for the flags of those before it, which have lower program ids, and composes what they published. Where it is not, a
program may take its rows in several pieces, one after the other in scan order. For `COMPOSITE` each program writes the
composite of its steps, and nothing else.

Everything static is a `tl.constexpr`: shapes, strides, what is read, and the algebra as functions. A tile is
[groups, rows].
"""

import triton
import triton.language as tl


def limit_registers(most, _semantic=None, _generator=None):
    """Lets a thread have up to `most` registers; 0 leaves it to the compiler. It means nothing to the interpreter.

    This is Triton's option maxnreg, which jax_triton 0.3 cannot pass.
    """
    if _generator is not None and most.value:
        _generator.module.set_attr("ttg.maxnreg", _semantic.builder.get_int32_attr(most.value))


setattr(limit_registers, tl.core.TRITON_BUILTIN, True)


@triton.jit
def times0(a, b):
    """a * b, but 0 where a is 0: garbage behind a cut stays there."""
    return a * tl.where(a == 0, 0.0, b)


@triton.jit
def compose(w1, u1, w2, u2):
    return times0(w2, w1), times0(w2, u1) + u2


@triton.jit
def compose_exclusive(w1, u1, v1, p1, w2, u2, v2, p2):
    """Composites (w, u) of all elements and (v, p) of all but the newest."""
    return times0(w2, w1), times0(w2, u1) + u2, times0(v2, w1), times0(v2, u1) + p2


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def total(x, AXIS: tl.constexpr):
    """tl.sum, which Triton's interpreter has only where it interprets everything."""
    return tl.reduce(x, AXIS, add)


@triton.jit
def row_offset(row, BATCH: tl.constexpr, ACCESS: tl.constexpr, i: tl.constexpr):
    """Where `row` begins in memory for access i; batch axes come last to first."""
    offset = row * 0
    for k in tl.static_range(len(BATCH)):
        if k == len(BATCH) - 1:
            offset += row * ACCESS[i][2 + k]
        else:
            offset += (row % BATCH[k]) * ACCESS[i][2 + k]
            row = row // BATCH[k]
    return offset


@triton.jit
def fetch(pointers, ACCESS: tl.constexpr, i: tl.constexpr, t, row, live, BATCH: tl.constexpr, MASKED: tl.constexpr):
    """Operand access i, (pointer, stride of time, strides of the batch axes), at steps t of rows `row`."""
    at = row_offset(row, BATCH, ACCESS, i)
    if ACCESS[i][1] != 0:
        at = at + t * ACCESS[i][1]
        if MASKED:
            return tl.load(pointers[ACCESS[i][0]] + at, mask=live, other=0)
        else:
            return tl.load(pointers[ACCESS[i][0]] + at)
    else:
        return tl.load(pointers[ACCESS[i][0]] + at)


@triton.jit
def adjoining(t, WIDTH: tl.constexpr):
    """WIDTH steps from t, as [groups, 1, WIDTH]."""
    return t[:, :, None] + tl.arange(0, WIDTH)[None, None, :]


@triton.jit
def read_sum(
    pointers, READS: tl.constexpr, ACCESS: tl.constexpr, i: tl.constexpr, t, row, live_row, T: tl.constexpr,
    BATCH: tl.constexpr, TERMS: tl.constexpr, DTYPE: tl.constexpr, MASKED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Read i, a sum of products that are 0 where either factor is, at each of WIDTH steps, as [steps, rows, groups].

    Terms lie side by side in memory. The compiler gives threads to the axes before them in their order, so the one with
    the smallest stride comes first: threads then load whole sectors.
    """
    X: tl.constexpr = READS[i][1]
    Y: tl.constexpr = READS[i][6]
    AT_ONCE: tl.constexpr = 4 if TERMS % 4 == 0 else 2 if TERMS % 2 == 0 else 1
    t = tl.permute(adjoining(t, WIDTH), 2, 1, 0)
    row, live_row = tl.permute(row[:, :, None], 2, 1, 0), tl.permute(live_row[:, :, None], 2, 1, 0)
    live = (live_row & (t < T))[:, :, :, None]
    x_at = (row_offset(row, BATCH, ACCESS, X) + t * ACCESS[X][1])[:, :, :, None]
    y_at = (row_offset(row, BATCH, ACCESS, Y) + t * ACCESS[Y][1])[:, :, :, None]
    result = tl.full((live.shape[0], live.shape[1], live.shape[2]), 0.0, DTYPE)
    for first in tl.static_range(0, TERMS, AT_ONCE):
        term = first + tl.arange(0, AT_ONCE)[None, None, None, :]
        x = pointers[ACCESS[X][0]] + x_at + term
        y = pointers[ACCESS[Y][0]] + y_at + term
        if MASKED:
            x, y = tl.load(x, mask=live, other=0).to(DTYPE), tl.load(y, mask=live, other=0).to(DTYPE)
        else:
            x, y = tl.load(x).to(DTYPE), tl.load(y).to(DTYPE)
        result += total(tl.where(x == 0, 0.0, times0(y, x)), 3)
    return result


@triton.jit
def typed(x, FLAG: tl.constexpr, DTYPE: tl.constexpr):
    if FLAG:
        return x != 0
    else:
        return x.to(DTYPE)


@triton.constexpr_function
def is_full(reads, access, i):
    """Is read i one of an array with an element for each step?"""
    return reads[i][1] >= 0 and access[reads[i][1]][1] != 0


@triton.constexpr_function
def looks_back(reads, i, reverse, slice):
    """Does read i, shifted, ask for what the slice before this one has met?"""
    return slice > 0 and reads[i][2] == (1 if reverse else -1)


@triton.jit
def read(
    pointers, READS: tl.constexpr, ACCESS: tl.constexpr, i: tl.constexpr, t, row, safe_row, live_row, T: tl.constexpr,
    REVERSE: tl.constexpr, BATCH: tl.constexpr, DTYPE: tl.constexpr, ROW_MASK: tl.constexpr, TIME_MASK: tl.constexpr,
    SLICE: tl.constexpr, newer,
):  # fmt: skip
    """Read i at steps t.

    A read is (kind, access or -1, shift, rows in memory, access of the row beyond or -1, twin or -1, access of the
    weights or -1).
    """
    KNOWN: tl.constexpr = looks_back(READS, i, REVERSE, SLICE) and READS[i][5] >= 0
    if READS[i][0] == 2:
        x = t == (T - 1 if REVERSE else 0)
    elif KNOWN:
        x = newer[READS[i][5]][0]
    elif READS[i][1] >= 0:
        if READS[i][2] != 0:
            at = t + READS[i][2]
            live = live_row & (at >= 0) & (at < READS[i][3])
            x = fetch(pointers, ACCESS, READS[i][1], at, row, live, BATCH, True)
        elif is_full(READS, ACCESS, i):
            live = live_row & (t < READS[i][3])
            x = fetch(pointers, ACCESS, READS[i][1], t, row, live, BATCH, ROW_MASK or TIME_MASK)
        else:
            x = fetch(pointers, ACCESS, READS[i][1], t, safe_row, live_row, BATCH, False)
    else:
        x = tl.full((1, 1), 0, DTYPE)
    if READS[i][4] >= 0 and (TIME_MASK or not KNOWN):
        edge = fetch(pointers, ACCESS, READS[i][4], 0, safe_row, live_row, BATCH, False).to(DTYPE)
        outside = (t + READS[i][2] < 0) | (t + READS[i][2] >= READS[i][3])
        x = tl.where(outside, edge, x.to(DTYPE))
    return typed(x, READS[i][0] != 0, DTYPE)


@triton.jit
def apart(x):
    """The four [groups, rows] tiles of one of [groups, rows, 4]."""
    even, odd = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], 2, 2)))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return x0, x1, x2, x3


@triton.jit
def together(x0, x1, x2, x3):
    """The inverse of `apart`."""
    return tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), (x0.shape[0], x0.shape[1], 4))


@triton.jit
def within(x, t, edge, ROWS: tl.constexpr):
    """x, or `edge` where the step t that x comes from is outside the window."""
    return tl.where((t < 0) | (t >= ROWS), edge, x)


@triton.jit
def read_four(
    pointers, READS: tl.constexpr, ACCESS: tl.constexpr, i: tl.constexpr, t, row, safe_row, live_row, T: tl.constexpr,
    REVERSE: tl.constexpr, BATCH: tl.constexpr, DTYPE: tl.constexpr, ROW_MASK: tl.constexpr, TIME_MASK: tl.constexpr,
    SLICE: tl.constexpr, newer, held,
):  # fmt: skip
    """Read i, a full array, at each of the steps t to t + 3, and what a shifted read by the next slice lacks.

    `held` are the reads before it there, `newer` all those of the slice before.
    """
    FLAG: tl.constexpr = READS[i][0] != 0
    SHIFT: tl.constexpr = READS[i][2]
    KNOWN: tl.constexpr = looks_back(READS, i, REVERSE, SLICE)
    if READS[i][5] >= 0 and READS[i][5] < i:
        x0, x1, x2, x3, last = held[READS[i][5]]
    else:
        steps = adjoining(t, 4)
        live = live_row[:, :, None] & (steps < READS[i][3])
        x = fetch(pointers, ACCESS, READS[i][1], steps, row[:, :, None], live, BATCH, ROW_MASK or TIME_MASK)
        x0, x1, x2, x3 = apart(typed(x, FLAG, DTYPE))
        last = x0 if REVERSE else x3
    if SHIFT != 0:
        if KNOWN:
            edge = newer[i][4]
        else:
            at = t + (4 if SHIFT == 1 else -1)
            live = live_row & (at >= 0) & (at < READS[i][3])
            edge = typed(fetch(pointers, ACCESS, READS[i][1], at, row, live, BATCH, True), FLAG, DTYPE)
        if SHIFT == 1:
            x0, x1, x2, x3 = x1, x2, x3, edge
        else:
            x0, x1, x2, x3 = edge, x0, x1, x2
        if READS[i][4] >= 0:
            beyond = typed(fetch(pointers, ACCESS, READS[i][4], 0, safe_row, live_row, BATCH, False), FLAG, DTYPE)
            if TIME_MASK or (SHIFT == -1 and not KNOWN):
                x0 = within(x0, t + SHIFT, beyond, READS[i][3])
            if TIME_MASK:
                x1 = within(x1, t + 1 + SHIFT, beyond, READS[i][3])
                x2 = within(x2, t + 2 + SHIFT, beyond, READS[i][3])
            if TIME_MASK or (SHIFT == 1 and not KNOWN):
                x3 = within(x3, t + 3 + SHIFT, beyond, READS[i][3])
    return x0, x1, x2, x3, last


@triton.jit
def read_all(
    pointers, READS: tl.constexpr, ACCESS: tl.constexpr, t, row, safe_row, live_row, T: tl.constexpr,
    REVERSE: tl.constexpr, BATCH: tl.constexpr, TERMS: tl.constexpr, DTYPE: tl.constexpr, ROW_MASK: tl.constexpr,
    TIME_MASK: tl.constexpr, WIDTH: tl.constexpr, SLICE: tl.constexpr, newer,
):  # fmt: skip
    """Every read at each of WIDTH steps from t, sums as `read_sum` has them; `newer` are those of the slice before."""
    held = ()
    for i in tl.static_range(len(READS)):
        if READS[i][6] >= 0:
            steps = read_sum(
                pointers, READS, ACCESS, i, t, row, live_row, T, BATCH, TERMS, DTYPE, ROW_MASK or TIME_MASK, WIDTH
            )  # fmt: skip
        elif WIDTH == 4 and is_full(READS, ACCESS, i):
            steps = read_four(
                pointers, READS, ACCESS, i, t, row, safe_row, live_row, T, REVERSE, BATCH, DTYPE, ROW_MASK, TIME_MASK,
                SLICE, newer, held,
            )  # fmt: skip
        else:
            steps = ()
            for j in tl.static_range(WIDTH):
                x = read(
                    pointers, READS, ACCESS, i, t + j, row, safe_row, live_row, T, REVERSE, BATCH, DTYPE, ROW_MASK,
                    TIME_MASK, SLICE, newer,
                )  # fmt: skip
                steps = steps + (x,)
        held = held + (steps,)
    return held


@triton.jit
def placed(READS: tl.constexpr, held, WIDTH: tl.constexpr):
    """The reads, with sums where the tile has them: threads meet to exchange them, for which no load should wait."""
    reads = ()
    for i in tl.static_range(len(READS)):
        if READS[i][6] < 0:
            steps = held[i]
        elif WIDTH == 4:
            steps = apart(tl.permute(held[i], 2, 1, 0))
        else:
            x = tl.permute(held[i], 2, 1, 0)
            steps = (tl.reshape(x, (x.shape[0], x.shape[1])),)
        reads = reads + (steps,)
    return reads


@triton.jit
def at_step(held, j: tl.constexpr):
    """The reads at one of the steps that `read_all` took together."""
    values = ()
    for i in tl.static_range(len(held)):
        values = values + (held[i][j],)
    return values


@triton.jit
def result_of(made, k: tl.constexpr, INDEX: tl.constexpr, SHAPE: tl.constexpr, DTYPE: tl.constexpr):
    """Output INDEX, or the state where that is negative, of (outputs, state) number k."""
    if INDEX < 0:
        return tl.broadcast_to(made[k][1], SHAPE).to(DTYPE)
    else:
        return tl.broadcast_to(made[k][0][INDEX], SHAPE).to(DTYPE)


@triton.jit
def earlier_composites(
    initial, scratch_w, scratch_u, flags, order, block, row, live_row, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
    CHUNKS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """The state that enters this chunk: `initial` through the composites of all chunks before it in scan order."""
    SPAN: tl.constexpr = max(16, triton.next_power_of_2(CHUNKS))
    index = tl.arange(0, SPAN)
    before = index < order
    waiting = total(before.to(tl.int32), 0)
    while waiting > 0:
        raised = tl.atomic_add(flags + index * BLOCKS + block, 0, mask=before, sem="acquire")
        waiting = total((before & (raised == 0)).to(tl.int32), 0)
    tl.debug_barrier()
    index, before = index[:, None], before[:, None]
    at = index * ROWS + row
    w = tl.load(scratch_w + at, mask=before & live_row, other=1.0, cache_modifier=".cg")
    u = tl.load(scratch_u + at, mask=before & live_row, other=0.0, cache_modifier=".cg")
    w, u = tl.associative_scan((w, u), 0, compose)
    last = index == SPAN - 1
    w = total(tl.where(last, w, 0.0), 0)[None, :]
    u = total(tl.where(last, u, 0.0), 0)[None, :]
    return u + times0(w, initial)


@triton.jit
def scan_tile(
    inputs, outs, scratch,
    COEFFICIENTS: tl.constexpr, OUTPUTS: tl.constexpr, READS: tl.constexpr, ACCESS: tl.constexpr,
    WANTED: tl.constexpr, INITIAL: tl.constexpr, BATCH: tl.constexpr,
    T: tl.constexpr, ROWS: tl.constexpr, TERMS: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr,
    WIDE: tl.constexpr, COMPOSITE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr,
    SLICES: tl.constexpr, PIECES: tl.constexpr, CHUNKS: tl.constexpr, REGISTERS: tl.constexpr,
):  # fmt: skip
    limit_registers(REGISTERS)
    BLOCKS: tl.constexpr = (ROWS + BLOCK - 1) // BLOCK
    STEPS: tl.constexpr = GROUPS * SLICES
    VECTORS: tl.constexpr = SLICES // WIDTH
    ROW_MASK: tl.constexpr = ROWS % BLOCK != 0
    TIME_MASK: tl.constexpr = T != STEPS * PIECES * CHUNKS
    OPERANDS: tl.constexpr = len(ACCESS) - len(WANTED)
    SHAPE: tl.constexpr = (GROUPS, BLOCK)
    block, order = tl.program_id(0) % BLOCKS, tl.program_id(0) // BLOCKS
    chunk = CHUNKS - 1 - order if REVERSE else order

    row = block * BLOCK + tl.arange(0, BLOCK)[None, :]
    group = tl.arange(0, GROUPS)[:, None]
    last = group == GROUPS - 1
    if REVERSE:
        group = GROUPS - 1 - group
    if WIDE:
        row, group = row.to(tl.int64), group.to(tl.int64)
    live_row = row < ROWS
    safe_row = tl.where(live_row, row, 0) if ROW_MASK else row
    zero = tl.full(SHAPE, 0.0, DTYPE)
    carry = tl.full(safe_row.shape, 0.0, DTYPE)
    carry_w = carry + 1.0
    if INITIAL >= 0:
        carry += fetch(inputs, ACCESS, INITIAL, 0, safe_row, live_row, BATCH, False).to(DTYPE)

    for piece in range(PIECES):
        start = chunk * PIECES + (PIECES - 1 - piece if REVERSE else piece)
        begin = start * STEPS + group * SLICES
        held = ()
        loaded = ()
        for v in tl.static_range(VECTORS):
            first = begin + (VECTORS - 1 - v if REVERSE else v) * WIDTH
            held = read_all(
                inputs, READS, ACCESS, first, row, safe_row, live_row, T, REVERSE, BATCH, TERMS, DTYPE, ROW_MASK,
                TIME_MASK, WIDTH, v, held,
            )  # fmt: skip
            loaded = loaded + (held,)
        reads = ()
        weights = ()
        drives = ()
        for v in tl.static_range(VECTORS):
            held = placed(READS, loaded[v], WIDTH)
            for k in tl.static_range(WIDTH):
                values = at_step(held, WIDTH - 1 - k if REVERSE else k)
                t = begin + (SLICES - 1 - v * WIDTH - k if REVERSE else v * WIDTH + k)
                w, u = COEFFICIENTS(*values)
                if TIME_MASK:
                    w, u = tl.where(t < T, w, 1.0), tl.where(t < T, u, 0.0)
                w, u = tl.broadcast_to(w.to(DTYPE), SHAPE), tl.broadcast_to(u.to(DTYPE), SHAPE)
                if v == 0 and k == 0:
                    group_w, group_u = w, u
                else:
                    group_w, group_u = compose(group_w, group_u, w, u)
                reads = reads + (values,)
                weights = weights + (w,)
                drives = drives + (u,)

        through_w, through_u, enter_w, enter_u = tl.associative_scan(
            (group_w, group_u, zero + 1.0, zero), 0, compose_exclusive
        )
        if CHUNKS > 1 or PIECES > 1 or COMPOSITE:
            whole_w = total(tl.where(last, through_w, 0.0), 0)[None, :]
            whole_u = total(tl.where(last, through_u, 0.0), 0)[None, :]
        if CHUNKS > 1 and not COMPOSITE:
            tl.store(scratch[0] + order * ROWS + row, whole_w, mask=live_row)
            tl.store(scratch[1] + order * ROWS + row, whole_u, mask=live_row)
            tl.debug_barrier()
            tl.atomic_xchg(scratch[2] + order * BLOCKS + block, 1, sem="release")
            carry = earlier_composites(
                carry, scratch[0], scratch[1], scratch[2], order, block, row, live_row, ROWS, BLOCKS, CHUNKS, DTYPE
            )  # fmt: skip

        state = enter_u
        if CHUNKS > 1 or PIECES > 1 or INITIAL >= 0:
            state = enter_u + times0(enter_w, carry)
        if PIECES > 1 or COMPOSITE:
            carry = whole_u + times0(whole_w, carry)
            carry_w = times0(whole_w, carry_w)
        for v in tl.static_range(0 if COMPOSITE else VECTORS):
            first = begin + (VECTORS - 1 - v if REVERSE else v) * WIDTH
            made = ()
            for k in tl.static_range(WIDTH):
                previous = state
                state = drives[v * WIDTH + k] + times0(weights[v * WIDTH + k], state)
                made = made + ((OUTPUTS(*reads[v * WIDTH + k], state, previous), state),)
            for n in tl.static_range(len(WANTED)):
                if WIDTH == 4:
                    steps = adjoining(first, 4)
                    at = row_offset(row[:, :, None], BATCH, ACCESS, OPERANDS + n) + steps * ACCESS[OPERANDS + n][1]
                    live = live_row[:, :, None] & (steps < T)
                    result = together(
                        result_of(made, 3 if REVERSE else 0, WANTED[n], SHAPE, outs[n].dtype.element_ty),
                        result_of(made, 2 if REVERSE else 1, WANTED[n], SHAPE, outs[n].dtype.element_ty),
                        result_of(made, 1 if REVERSE else 2, WANTED[n], SHAPE, outs[n].dtype.element_ty),
                        result_of(made, 0 if REVERSE else 3, WANTED[n], SHAPE, outs[n].dtype.element_ty),
                    )
                else:
                    at = row_offset(row, BATCH, ACCESS, OPERANDS + n) + first * ACCESS[OPERANDS + n][1]
                    live = live_row & (first < T)
                    result = result_of(made, 0, WANTED[n], SHAPE, outs[n].dtype.element_ty)
                if ROW_MASK or TIME_MASK:
                    tl.store(outs[n] + at, result, mask=live)
                else:
                    tl.store(outs[n] + at, result)

    if COMPOSITE:
        tl.store(outs[0] + order * ROWS + row, carry_w, mask=live_row)
        tl.store(outs[1] + order * ROWS + row, carry, mask=live_row)
