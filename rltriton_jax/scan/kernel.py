"""The one Triton kernel: algebra, scan over time, algebra, in a single pass over memory.

A program takes a tile of `rows` (batch elements) by `slices * groups` steps. Step j * slices + s is slice s of group
j. Each group's slices are composed serially in registers, the groups' composites are scanned across threads, and the
slices are replayed from the state that enters their group:

    x[t] = u[t] + w[t] * x[t -+ 1]        composite of older (w1, u1) and newer (w2, u2): (w2 w1, w2 u1 + u2)

Where time is split over programs, each publishes its composite and raises a flag; one that is later in scan order waits
for the flags of those before it, which have lower program ids, and composes what they published. Where it is not, a
program may take its rows in several pieces, one after the other in scan order. For `COMPOSITE` each program writes the
composite of its steps, and nothing else.

Everything static is a `tl.constexpr`: shapes, strides, what is read, and the algebra as functions. A tile is
[time, rows] or [rows, time] by `TIME`, the tile's axis of time.
"""

import triton
import triton.language as tl


@triton.jit
def times0(a, b):
    """a * b, but 0 where a is 0: garbage behind a cut stays there."""
    return tl.where(a == 0, 0.0, a * b)


@triton.jit
def compose(w1, u1, w2, u2):
    return tl.where(w2 == 0, 0.0, w2 * w1), tl.where(w2 == 0, 0.0, w2 * u1) + u2


@triton.jit
def compose_exclusive(w1, u1, v1, p1, w2, u2, v2, p2):
    """Composites (w, u) of all elements and (v, p) of all but the newest."""
    return (
        tl.where(w2 == 0, 0.0, w2 * w1),
        tl.where(w2 == 0, 0.0, w2 * u1) + u2,
        tl.where(v2 == 0, 0.0, v2 * w1),
        tl.where(v2 == 0, 0.0, v2 * u1) + p2,
    )


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def total(x, AXIS: tl.constexpr):
    """tl.sum, which Triton's interpreter has only where it interprets everything."""
    return tl.reduce(x, AXIS, add)


@triton.jit
def along(x, TIME: tl.constexpr):
    """A vector over time as a tile of one row."""
    if TIME == 0:
        return x[:, None]
    else:
        return x[None, :]


@triton.jit
def across(x, TIME: tl.constexpr):
    """A vector over rows as a tile of one step."""
    if TIME == 0:
        return x[None, :]
    else:
        return x[:, None]


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
def weighted_sum(
    pointers, ACCESS: tl.constexpr, i: tl.constexpr, j: tl.constexpr, t, row, live, BATCH: tl.constexpr,
    TERMS: tl.constexpr, DTYPE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The sum of the terms of access i times those of access j, each 0 where either factor is.

    Terms lie side by side in memory, then the tile's second axis does. The compiler gives threads to axes of equal
    stride in their order, so that one comes first: threads then load sectors, and hold the sum where the tile has it.
    """
    WIDTH: tl.constexpr = 4 if TERMS % 4 == 0 else 2 if TERMS % 2 == 0 else 1
    t, row, live = tl.trans(t), tl.trans(row), tl.trans(live)[:, :, None]
    at_i = (row_offset(row, BATCH, ACCESS, i) + t * ACCESS[i][1])[:, :, None]
    at_j = (row_offset(row, BATCH, ACCESS, j) + t * ACCESS[j][1])[:, :, None]
    result = tl.full((live.shape[0], live.shape[1]), 0.0, DTYPE)
    for first in tl.static_range(0, TERMS, WIDTH):
        term = first + tl.arange(0, WIDTH)[None, None, :]
        x = pointers[ACCESS[i][0]] + at_i + term
        y = pointers[ACCESS[j][0]] + at_j + term
        if MASKED:
            x, y = tl.load(x, mask=live, other=0).to(DTYPE), tl.load(y, mask=live, other=0).to(DTYPE)
        else:
            x, y = tl.load(x).to(DTYPE), tl.load(y).to(DTYPE)
        result += total(tl.where(x == 0, 0.0, times0(y, x)), 2)
    return tl.trans(result)


@triton.jit
def shifted(x, edge, SHIFT: tl.constexpr):
    """x at the next (SHIFT = 1) or last step of a [rows, time] tile whose threads hold 4 steps each.

    `edge` has what each 4 steps lack. Loads would do the same one element at a time, as they are not aligned.
    """
    pairs = tl.reshape(x, (x.shape[0], x.shape[1] // 4, 2, 2))
    even, odd = tl.split(pairs)
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    if SHIFT == 1:
        y = tl.join(tl.join(x1, x3), tl.join(x2, edge))
    else:
        y = tl.join(tl.join(edge, x1), tl.join(x0, x2))
    return tl.reshape(y, x.shape)


@triton.jit
def read(
    pointers, READS: tl.constexpr, ACCESS: tl.constexpr, i: tl.constexpr, t, fours, row, safe_row, live_row,
    T: tl.constexpr, FIRST: tl.constexpr, BATCH: tl.constexpr, TERMS: tl.constexpr, DTYPE: tl.constexpr,
    ROW_MASK: tl.constexpr, TIME_MASK: tl.constexpr, EDGE_ONCE: tl.constexpr, SLICE: tl.constexpr, newer,
):  # fmt: skip
    """Read i as a tile.

    A read is (kind, access or -1, shift, rows in memory, access of the row beyond or -1, twin or -1, access of the
    weights or -1). `newer` are the reads of the slice before, whose twin of this read has met the same element already.
    """
    if READS[i][0] == 2:
        x = t == FIRST
    elif READS[i][6] >= 0:
        live = live_row & (t < T)
        x = weighted_sum(
            pointers, ACCESS, READS[i][1], READS[i][6], t, row, live, BATCH, TERMS, DTYPE, ROW_MASK or TIME_MASK
        )  # fmt: skip
    elif SLICE > 0 and READS[i][5] >= 0:
        x = newer[READS[i][5]]
    elif READS[i][1] >= 0:
        if READS[i][2] != 0 and fours is not None:
            live = live_row & (t < READS[i][3])
            x = fetch(pointers, ACCESS, READS[i][1], t, row, live, BATCH, ROW_MASK or TIME_MASK)
            at = fours + (4 if READS[i][2] == 1 else -1)
            live = live_row & (at >= 0) & (at < READS[i][3])
            x = shifted(x, fetch(pointers, ACCESS, READS[i][1], at, row, live, BATCH, True), READS[i][2])
        elif READS[i][2] != 0:
            at = t + READS[i][2]
            live = live_row & (at >= 0) & (at < READS[i][3])
            x = fetch(pointers, ACCESS, READS[i][1], at, row, live, BATCH, True)
        elif ACCESS[READS[i][1]][1] != 0:
            live = live_row & (t < READS[i][3])
            x = fetch(pointers, ACCESS, READS[i][1], t, row, live, BATCH, ROW_MASK or TIME_MASK)
        else:
            x = fetch(pointers, ACCESS, READS[i][1], t, safe_row, live_row, BATCH, False)
    else:
        x = tl.full((1, 1), 0, DTYPE)
    if READS[i][4] >= 0 and not (EDGE_ONCE and SLICE > 0 and READS[i][5] >= 0):
        edge = fetch(pointers, ACCESS, READS[i][4], 0, safe_row, live_row, BATCH, False).to(DTYPE)
        outside = (t + READS[i][2] < 0) | (t + READS[i][2] >= READS[i][3])
        x = tl.where(outside, edge, x.to(DTYPE))
    if READS[i][0] == 0:
        return x.to(DTYPE)
    else:
        return x != 0


@triton.jit
def read_all(
    pointers, READS: tl.constexpr, ACCESS: tl.constexpr, t, fours, row, safe_row, live_row,
    T: tl.constexpr, FIRST: tl.constexpr, BATCH: tl.constexpr, TERMS: tl.constexpr, DTYPE: tl.constexpr,
    ROW_MASK: tl.constexpr, TIME_MASK: tl.constexpr, EDGE_ONCE: tl.constexpr, SLICE: tl.constexpr, newer,
):  # fmt: skip
    values = ()
    for i in tl.static_range(len(READS)):
        value = read(
            pointers, READS, ACCESS, i, t, fours, row, safe_row, live_row, T, FIRST, BATCH, TERMS, DTYPE, ROW_MASK,
            TIME_MASK, EDGE_ONCE, SLICE, newer,
        )  # fmt: skip
        values = values + (value,)
    return values


@triton.jit
def earlier_composites(
    initial, scratch_w, scratch_u, flags, order, block, row, live_row, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
    CHUNKS: tl.constexpr, DTYPE: tl.constexpr, TIME: tl.constexpr,
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
    index, before = along(index, TIME), along(before, TIME)
    at = index * ROWS + row
    w = tl.load(scratch_w + at, mask=before & live_row, other=1.0, cache_modifier=".cg")
    u = tl.load(scratch_u + at, mask=before & live_row, other=0.0, cache_modifier=".cg")
    w, u = tl.associative_scan((w, u), TIME, compose)
    last = index == SPAN - 1
    w = total(tl.where(last, w, 0.0), TIME)
    u = total(tl.where(last, u, 0.0), TIME)
    return across(u, TIME) + times0(across(w, TIME), initial)


@triton.jit
def scan_tile(
    inputs, outs, scratch,
    COEFFICIENTS: tl.constexpr, OUTPUTS: tl.constexpr, READS: tl.constexpr, ACCESS: tl.constexpr,
    WANTED: tl.constexpr, INITIAL: tl.constexpr, NEEDS_PREVIOUS: tl.constexpr, BATCH: tl.constexpr,
    T: tl.constexpr, ROWS: tl.constexpr, TERMS: tl.constexpr, REVERSE: tl.constexpr, DTYPE: tl.constexpr,
    WIDE: tl.constexpr, COMPOSITE: tl.constexpr, TIME: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr,
    SLICES: tl.constexpr, PIECES: tl.constexpr, CHUNKS: tl.constexpr, EDGE_ONCE: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (ROWS + BLOCK - 1) // BLOCK
    STEPS: tl.constexpr = GROUPS * SLICES
    ROW_MASK: tl.constexpr = ROWS % BLOCK != 0
    TIME_MASK: tl.constexpr = T % (STEPS * PIECES) != 0
    FIRST: tl.constexpr = T - 1 if REVERSE else 0
    LAST_GROUP: tl.constexpr = 0 if REVERSE else GROUPS - 1
    OPERANDS: tl.constexpr = len(ACCESS) - len(WANTED)
    INCLUSIVE: tl.constexpr = SLICES == 1 and not NEEDS_PREVIOUS
    block, order = tl.program_id(0) % BLOCKS, tl.program_id(0) // BLOCKS
    chunk = CHUNKS - 1 - order if REVERSE else order

    row = block * BLOCK + tl.arange(0, BLOCK)
    group = tl.arange(0, GROUPS)
    if WIDE:
        row, group = row.to(tl.int64), group.to(tl.int64)
    row = across(row, TIME)
    live_row = row < ROWS
    safe_row = tl.where(live_row, row, 0) if ROW_MASK else row
    if TIME == 0:
        zero = tl.full((GROUPS, BLOCK), 0.0, DTYPE)
    else:
        zero = tl.full((BLOCK, GROUPS), 0.0, DTYPE)
    carry = tl.full(safe_row.shape, 0.0, DTYPE)
    carry_w = carry + 1.0
    if INITIAL >= 0:
        carry += fetch(inputs, ACCESS, INITIAL, 0, safe_row, live_row, BATCH, False).to(DTYPE)

    for piece in range(PIECES):
        start = chunk * PIECES + (PIECES - 1 - piece if REVERSE else piece)
        begin = start * STEPS + along(group, TIME) * SLICES
        if TIME == 1 and SLICES == 1 and GROUPS >= 512:
            fours = start * STEPS + along(tl.arange(0, GROUPS // 4) * 4, TIME)
        else:
            fours = None
        group_w, group_u = zero + 1.0, zero
        values = ()
        reads = ()
        weights = ()
        drives = ()
        for k in tl.static_range(SLICES):
            t = begin + (SLICES - 1 - k if REVERSE else k)
            values = read_all(
                inputs, READS, ACCESS, t, fours, row, safe_row, live_row, T, FIRST, BATCH, TERMS, DTYPE, ROW_MASK,
                TIME_MASK, EDGE_ONCE and not TIME_MASK, k, values,
            )  # fmt: skip
            w, u = COEFFICIENTS(*values)
            if TIME_MASK:
                w, u = tl.where(t < T, w, 1.0), tl.where(t < T, u, 0.0)
            w, u = tl.broadcast_to(w.to(DTYPE), zero.shape), tl.broadcast_to(u.to(DTYPE), zero.shape)
            if k == 0:
                group_w, group_u = w, u
            else:
                group_w, group_u = times0(w, group_w), times0(w, group_u) + u
            reads = reads + (values,)
            weights = weights + (w,)
            drives = drives + (u,)

        if INCLUSIVE:
            through_w, through_u = tl.associative_scan((group_w, group_u), TIME, compose, reverse=REVERSE)
            enter_w, enter_u = through_w, through_u
        else:
            through_w, through_u, enter_w, enter_u = tl.associative_scan(
                (group_w, group_u, zero + 1.0, zero), TIME, compose_exclusive, reverse=REVERSE
            )
        if CHUNKS > 1 or PIECES > 1 or COMPOSITE:
            last = along(tl.arange(0, GROUPS), TIME) == LAST_GROUP
            whole_w = across(total(tl.where(last, through_w, 0.0), TIME), TIME)
            whole_u = across(total(tl.where(last, through_u, 0.0), TIME), TIME)
        if CHUNKS > 1 and not COMPOSITE:
            tl.store(scratch[0] + order * ROWS + row, whole_w, mask=live_row)
            tl.store(scratch[1] + order * ROWS + row, whole_u, mask=live_row)
            tl.debug_barrier()
            tl.atomic_xchg(scratch[2] + order * BLOCKS + block, 1, sem="release")
            carry = earlier_composites(
                carry, scratch[0], scratch[1], scratch[2], order, block, row, live_row, ROWS, BLOCKS, CHUNKS, DTYPE,
                TIME,
            )  # fmt: skip

        state = enter_u
        if CHUNKS > 1 or PIECES > 1 or INITIAL >= 0:
            state = enter_u + times0(enter_w, carry)
        if PIECES > 1 or COMPOSITE:
            carry = whole_u + times0(whole_w, carry)
            carry_w = times0(whole_w, carry_w)
        for k in tl.static_range(0 if COMPOSITE else SLICES):
            t = begin + (SLICES - 1 - k if REVERSE else k)
            previous = state
            if not INCLUSIVE:
                state = drives[k] + times0(weights[k], state)
            results = OUTPUTS(*reads[k], state, previous)
            for n in tl.static_range(len(WANTED)):
                at = row_offset(row, BATCH, ACCESS, OPERANDS + n) + t * ACCESS[OPERANDS + n][1]
                if WANTED[n] < 0:
                    result = state
                else:
                    result = results[WANTED[n]]
                result = tl.broadcast_to(result, zero.shape).to(outs[n].dtype.element_ty)
                if ROW_MASK or TIME_MASK:
                    tl.store(outs[n] + at, result, mask=live_row & (t < T))
                else:
                    tl.store(outs[n] + at, result)

    if COMPOSITE:
        tl.store(outs[0] + order * ROWS + row, carry_w, mask=live_row)
        tl.store(outs[1] + order * ROWS + row, carry, mask=live_row)
