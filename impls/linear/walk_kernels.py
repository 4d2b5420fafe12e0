"""triton.linear: sums over the tokens up to each one, or from it on. Legend in the variant's file.

All of it, forward and backward, is one walk with other tensors in its roles:

    out_i = sum over j <= i of (x_i . y_j + a_i b_j) w_j         j >= i where REVERSED

A chunk's pairs are written out; the tokens before the chunk are in a state, sum y_j w_j^T, and a
total, sum b_j w_j. Forward, the total is sum y_j instead, and what a row's weights sum to is
divided by. Steps between tokens are multiplied in 64 bits, as in triton.flash.
"""

from __future__ import annotations

import triton
import triton.language as tl

from impls.jit_kernels import align


@triton.jit
def start_of(base, steps, which, heads, group, WIDTH: tl.constexpr):
    """The start of a head's tokens: of head ``which // group``, seen from a query head."""
    batch, head = tl.cast(which // heads, tl.int64), tl.cast(which % heads // group, tl.int64)
    return base + batch * align(steps[0], WIDTH) + head * align(steps[1], WIDTH)


@triton.jit
def places(first, step, count, column, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
           COLUMNS: tl.constexpr):  # fmt: skip
    """A block's offsets, and which of them are of a token and of a channel."""
    row, column = tl.arange(0, CHUNK)[:, None], column + tl.arange(0, COLUMNS)[None, :]
    step = align(step, WIDTH)
    at = first * tl.cast(step, tl.int64) + row * step + column
    return at, (first + row < count) & (column < WIDTH)


@triton.jit
def feature(x):
    """elu(x) + 1, with all digits of exp(x) for x below zero."""
    return tl.where(x > 0.0, x + 1.0, tl.exp(tl.minimum(x, 0.0)))


@triton.jit
def rounded(x, HALF: tl.constexpr, PRECISION: tl.constexpr):
    """As a product takes it: TF32 to the nearest, where the hardware would cut digits off.

    What is divided by its sum must be summed as rounded, or the quotients are off by a digit.
    """
    if HALF:
        x = x.to(tl.bfloat16)
    elif PRECISION == "tf32":
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def left(x, HALF: tl.constexpr, PRECISION: tl.constexpr):
    """The digits that rounding takes off, for a second product that brings them back."""
    return rounded(x - rounded(x, HALF, PRECISION).to(tl.float32), HALF, PRECISION)


@triton.jit
def read(base, over, first, step, count, column, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
         COLUMNS: tl.constexpr, ROLE: tl.constexpr, HALF: tl.constexpr,
         PRECISION: tl.constexpr):  # fmt: skip
    """A block for products: values as they are, features of q or k, or do over its row's sum."""
    at, there = places(first, step, count, column, WIDTH, CHUNK, COLUMNS)
    block = tl.load(base + at, mask=there, other=0.0).to(tl.float32)
    if ROLE == "features":  # nothing's feature is one, and must not count
        block = tl.where(there, feature(block), 0.0)
    if ROLE == "upstream":
        row = first + tl.arange(0, CHUNK)
        block *= tl.load(over + row, mask=row < count, other=0.0)[:, None]
    return rounded(block, HALF, PRECISION)


@triton.jit
def sums(y, w, over, terms, states, y_steps, w_steps, heads, count, segments, length, numbers,
         CHUNK: tl.constexpr, Y_WIDTH: tl.constexpr, Y_COLUMNS: tl.constexpr,
         W_WIDTH: tl.constexpr, W_COLUMNS: tl.constexpr, Y_ROLE: tl.constexpr,
         W_ROLE: tl.constexpr, TERM: tl.constexpr, HALF: tl.constexpr,
         PRECISION: tl.constexpr):  # fmt: skip
    """One segment's state, sum y_j w_j^T, and after it the total, sum b_j y_j."""
    blocks = tl.cdiv(W_WIDTH, W_COLUMNS)
    column, rest = (tl.program_id(0) % blocks) * W_COLUMNS, tl.program_id(0) // blocks
    segment, which = rest % segments, rest // segments
    y_at = start_of(y, y_steps, which, heads, 1, Y_WIDTH)
    w_at = start_of(w, w_steps, which, heads, 1, W_WIDTH)
    row_at = tl.cast(which, tl.int64) * count
    state = tl.zeros([Y_COLUMNS, W_COLUMNS], tl.float32)
    total = tl.zeros([Y_COLUMNS], tl.float32)
    here = segment * length
    for first in tl.range(here, tl.minimum(here + length, count), CHUNK):
        y_block = read(y_at, over + row_at, first, y_steps[2], count, 0, Y_WIDTH, CHUNK, Y_COLUMNS,
                       Y_ROLE, HALF, PRECISION)  # fmt: skip
        w_block = read(w_at, over + row_at, first, w_steps[2], count, column, W_WIDTH, CHUNK,
                       W_COLUMNS, W_ROLE, HALF, PRECISION)  # fmt: skip
        state = tl.dot(tl.trans(y_block), w_block, state, input_precision=PRECISION)
        if TERM == "keys":
            row = first + tl.arange(0, CHUNK)
            term = tl.load(terms + row_at + row, mask=row < count, other=0.0)
            total += tl.sum(y_block.to(tl.float32) * term[:, None], 0)
        else:
            total += tl.sum(y_block.to(tl.float32), 0)
    own = states + tl.cast(rest, tl.int64) * numbers
    i, j = tl.arange(0, Y_COLUMNS), column + tl.arange(0, W_COLUMNS)
    inside = (i < Y_WIDTH)[:, None] & (j < W_WIDTH)[None, :]
    tl.store(own + i[:, None] * W_WIDTH + j[None, :], state, mask=inside)
    if column == 0:
        tl.store(own + Y_WIDTH * W_WIDTH + i, total, mask=i < Y_WIDTH)


@triton.jit
def before(sums, states, segments, used, numbers, REVERSED: tl.constexpr, TILE: tl.constexpr,
           BLOCK: tl.constexpr):  # fmt: skip
    """Each segment's state: the sum of those before it; after it if REVERSED. TILE segments at a
    time, since loads of one after another would wait for each other.
    """
    blocks = tl.cdiv(numbers, BLOCK)
    at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    own = tl.cast(tl.program_id(0) // blocks, tl.int64) * segments * numbers
    step = 1 if REVERSED else -1
    so_far = tl.zeros([BLOCK], tl.float32)
    for first in tl.range(0, segments, TILE):
        i = first + tl.arange(0, TILE)
        segment = segments - 1 - i if REVERSED else i
        place = own + segment[:, None] * numbers + at[None, :]
        inside = (i < segments)[:, None] & (at < used)[None, :]
        added = tl.load(sums + place + step * numbers, mask=inside & (i > 0)[:, None], other=0.0)
        tl.store(states + place, so_far[None, :] + tl.cumsum(added, 0), mask=inside)
        so_far += tl.sum(added, 0)


@triton.jit
def start_state(states, which, segment, channel, column, heads, group, segments, numbers, x_state,
          w_state, X_WIDTH: tl.constexpr, TILE: tl.constexpr, W_WIDTH: tl.constexpr,
          W_COLUMNS: tl.constexpr, TERM: tl.constexpr, CARRIED: tl.constexpr):  # fmt: skip
    """The state and the total that a segment begins with, of TILE channels from ``channel`` on."""
    state = tl.zeros([TILE, W_COLUMNS], tl.float32)
    if TERM == "sum":  # in each of the columns that a product has at the least
        total = tl.zeros([TILE, 16], tl.float32)
    if TERM != "sum":
        total = tl.zeros([W_COLUMNS], tl.float32)
    if CARRIED:
        head = which // heads * (heads // group) + which % heads // group
        own = states + (tl.cast(head, tl.int64) * segments + segment) * numbers
        i, j = channel + tl.arange(0, TILE), column + tl.arange(0, W_COLUMNS)
        inside = (i < X_WIDTH)[:, None] & (j < W_WIDTH)[None, :]
        at = i[:, None] * x_state + j[None, :] * w_state
        state = tl.load(own + at, mask=inside, other=0.0)
        if TERM == "sum":
            total += tl.load(own + X_WIDTH * W_WIDTH + i, mask=i < X_WIDTH, other=0.0)[:, None]
        elif TERM != "none":
            total = tl.load(own + X_WIDTH * W_WIDTH + j, mask=j < W_WIDTH, other=0.0)
    return state, total


@triton.jit
def with_term(pairs, rows, total, w_block, term, TERM: tl.constexpr):
    """a_i b_j: of the chunk's pairs, of what lies before, and of what the next chunk sees."""
    w_wide = w_block.to(tl.float32)
    if TERM == "rows":
        pairs += term[:, None]
        rows += term[:, None] * total[None, :]
        total += tl.sum(w_wide, 0)
    else:
        pairs += term[None, :]
        rows += total[None, :]
        total += tl.sum(w_wide * term[:, None], 0)
    return pairs, rows, total


@triton.jit
def of_state(x_block, state, rows, CANCELS: tl.constexpr, HALF: tl.constexpr,
             PRECISION: tl.constexpr):  # fmt: skip
    """Adds the part of the tokens before the chunk to its rows."""
    rows = tl.dot(x_block, rounded(state, HALF, PRECISION), rows, input_precision=PRECISION)
    if CANCELS:
        rows = tl.dot(x_block, left(state, HALF, PRECISION), rows, input_precision=PRECISION)
    return rows


@triton.jit
def of_pairs(pairs, w_block, rows, CANCELS: tl.constexpr, HALF: tl.constexpr,
             PRECISION: tl.constexpr):  # fmt: skip
    """The same, and what the chunk's own tokens give them."""
    if CANCELS:
        rows = tl.dot(left(pairs, HALF, PRECISION), w_block, rows, input_precision=PRECISION)
    return tl.dot(rounded(pairs, HALF, PRECISION), w_block, rows, input_precision=PRECISION)


@triton.jit
def met(x, y, over, first, x_step, y_step, count, channel, w_block, pairs, rows, state, whole,
        total, WIDTH: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, X_ROLE: tl.constexpr,
        Y_ROLE: tl.constexpr, TERM: tl.constexpr, CANCELS: tl.constexpr, HALF: tl.constexpr,
        PRECISION: tl.constexpr):  # fmt: skip
    """Adds TILE channels of x and y to a chunk's pairs and rows, and to the state after it.

    A tile of them at a time, since all at once would not fit the registers.
    """
    x_block = read(x, over, first, x_step, count, channel, WIDTH, CHUNK, TILE, X_ROLE, HALF,
                   PRECISION)  # fmt: skip
    y_block = read(y, over, first, y_step, count, channel, WIDTH, CHUNK, TILE, Y_ROLE, HALF,
                   PRECISION)  # fmt: skip
    pairs = tl.dot(x_block, tl.trans(y_block), pairs, input_precision=PRECISION)
    rows = of_state(x_block, state, rows, CANCELS, HALF, PRECISION)
    if TERM == "sum":
        whole = of_state(x_block, total, whole, PRECISION != "ieee", HALF, PRECISION)
        ones = tl.full([CHUNK, 16], 1.0, y_block.dtype)
        total = tl.dot(tl.trans(y_block), ones, total, input_precision=PRECISION)
    state = tl.dot(tl.trans(y_block), w_block, state, input_precision=PRECISION)
    return pairs, rows, state, whole, total


@triton.jit
def slopes(start, first, steps, count, column, W_WIDTH: tl.constexpr, CHUNK: tl.constexpr,
           W_COLUMNS: tl.constexpr):  # fmt: skip
    """The derivative of features by their channels."""
    at, there = places(first, steps[2], count, column, W_WIDTH, CHUNK, W_COLUMNS)
    channel = tl.load(start + at, mask=there, other=0.0).to(tl.float32)
    return tl.minimum(feature(channel), 1.0)


@triton.jit
def walk(x, y, w, out, unrounded, slope, over, terms, states, x_steps, y_steps, w_steps, out_steps,
         slope_steps, x_group, y_group, w_group, slope_group, state_group, heads, count, segments,
         length, numbers, x_state, w_state, CHUNK: tl.constexpr, X_WIDTH: tl.constexpr,
         X_COLUMNS: tl.constexpr, TILE: tl.constexpr, W_WIDTH: tl.constexpr,
         W_COLUMNS: tl.constexpr, X_ROLE: tl.constexpr, Y_ROLE: tl.constexpr,
         W_ROLE: tl.constexpr, TERM: tl.constexpr, SLOPED: tl.constexpr, KEEPS: tl.constexpr,
         CANCELS: tl.constexpr, REVERSED: tl.constexpr, CARRIED: tl.constexpr, HALF: tl.constexpr,
         PRECISION: tl.constexpr):  # fmt: skip
    """The rows of one segment of a query head, some columns of their output.

    TERM: "sum" divides by the weights' sum and keeps its inverse in ``over``; "rows" has a in
    ``terms`` and b = 1; "keys" has b there and a = 1; "none". CARRIED: ``states`` has what lies
    before. SLOPED: the gradient of features becomes that of the channels. KEEPS: writes the output
    a second time, unrounded and row after row. CANCELS: little will be left of its sums, so what
    rounding takes off the state and the pairs is multiplied too.
    """
    blocks = tl.cdiv(W_WIDTH, W_COLUMNS)
    column, rest = (tl.program_id(0) % blocks) * W_COLUMNS, tl.program_id(0) // blocks
    segment, which = rest % segments, rest // segments
    x_at = start_of(x, x_steps, which, heads, x_group, X_WIDTH)
    y_at = start_of(y, y_steps, which, heads, y_group, X_WIDTH)
    w_at = start_of(w, w_steps, which, heads, w_group, W_WIDTH)
    out_at = start_of(out, out_steps, which, heads, 1, W_WIDTH)
    slope_at = start_of(slope, slope_steps, which, heads, slope_group, W_WIDTH)
    row_at = tl.cast(which, tl.int64) * count
    state, total = start_state(
        states, which, segment, 0, column, heads, state_group, segments, numbers, x_state, w_state,
        X_WIDTH, TILE, W_WIDTH, W_COLUMNS, TERM, CARRIED,
    )  # fmt: skip
    state_2, total_2 = state, total
    if X_COLUMNS > TILE:
        state_2, total_2 = start_state(
            states, which, segment, TILE, column, heads, state_group, segments, numbers, x_state,
            w_state, X_WIDTH, TILE, W_WIDTH, W_COLUMNS, TERM, CARRIED,
        )  # fmt: skip
    here = segment * length
    past = tl.minimum(here + length, count)
    row = tl.arange(0, CHUNK)
    for done in tl.range(0, past - here, CHUNK):
        first = (past - here - 1) // CHUNK * CHUNK + here - done if REVERSED else here + done
        w_block = read(w_at, over + row_at, first, w_steps[2], count, column, W_WIDTH, CHUNK,
                       W_COLUMNS, W_ROLE, HALF, PRECISION)  # fmt: skip
        pairs = tl.zeros([CHUNK, CHUNK], tl.float32)
        rows = tl.zeros([CHUNK, W_COLUMNS], tl.float32)
        whole = tl.zeros([CHUNK, 16], tl.float32)
        pairs, rows, state, whole, total = met(
            x_at, y_at, over + row_at, first, x_steps[2], y_steps[2], count, 0, w_block, pairs,
            rows, state, whole, total, X_WIDTH, CHUNK, TILE, X_ROLE, Y_ROLE, TERM, CANCELS, HALF,
            PRECISION,
        )  # fmt: skip
        if X_COLUMNS > TILE:
            pairs, rows, state_2, whole, total_2 = met(
                x_at, y_at, over + row_at, first, x_steps[2], y_steps[2], count, TILE, w_block,
                pairs, rows, state_2, whole, total_2, X_WIDTH, CHUNK, TILE, X_ROLE, Y_ROLE, TERM,
                CANCELS, HALF, PRECISION,
            )  # fmt: skip
        if TERM == "rows" or TERM == "keys":
            term = tl.load(terms + row_at + first + row, mask=first + row < count, other=0.0)
            pairs, rows, total = with_term(pairs, rows, total, w_block, term, TERM)
        visible = row[:, None] <= row[None, :] if REVERSED else row[:, None] >= row[None, :]
        pairs = tl.where(visible, pairs, 0.0)
        rows = of_pairs(pairs, w_block, rows, CANCELS and TERM == "rows", HALF, PRECISION)
        if TERM == "sum":
            weights = tl.sum(rounded(pairs, HALF, PRECISION).to(tl.float32), 1)
            weights += tl.sum(whole, 1) / 16
            inverse = 1.0 / tl.where(weights == 0.0, 1.0, weights)
            rows *= inverse[:, None]
            if column == 0:
                tl.store(over + row_at + first + row, inverse, mask=first + row < count)
        if SLOPED:
            rows *= slopes(slope_at, first, slope_steps, count, column, W_WIDTH, CHUNK, W_COLUMNS)
        at, there = places(first, out_steps[2], count, column, W_WIDTH, CHUNK, W_COLUMNS)
        tl.store(out_at + at, rows.to(out.dtype.element_ty), mask=there)
        if KEEPS:
            at, there = places(first, W_WIDTH, count, column, W_WIDTH, CHUNK, W_COLUMNS)
            tl.store(unrounded + row_at * W_WIDTH + at, rows, mask=there)


@triton.jit
def losses(unrounded, dout, over, lost, dout_steps, heads, count, CHUNK: tl.constexpr,
           WIDTH: tl.constexpr, COLUMNS: tl.constexpr, HALF: tl.constexpr,
           PRECISION: tl.constexpr):  # fmt: skip
    """The gradient that a row's weights lose to its sum, -(o . u): u as rounded in the products.

    Where keys are alike, what a row loses is nearly all that it had: o must not be rounded.
    """
    blocks = tl.cdiv(count, CHUNK)
    first, which = (tl.program_id(0) % blocks) * CHUNK, tl.program_id(0) // blocks
    row_at = tl.cast(which, tl.int64) * count
    dout_at = start_of(dout, dout_steps, which, heads, 1, WIDTH)
    u = read(dout_at, over + row_at, first, dout_steps[2], count, 0, WIDTH, CHUNK, COLUMNS,
             "upstream", HALF, PRECISION)  # fmt: skip
    at, there = places(first, WIDTH, count, 0, WIDTH, CHUNK, COLUMNS)
    o = tl.load(unrounded + row_at * WIDTH + at, mask=there, other=0.0).to(tl.float32)
    row = first + tl.arange(0, CHUNK)
    tl.store(lost + row_at + row, -tl.sum(o * u.to(tl.float32), 1), mask=row < count)
