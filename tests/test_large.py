"""More elements than 32 bits can count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rltriton_jax as rtj

STEPS, ROWS = 2**14, 2**17 + 3
"""2**31 + 49,152 elements, 4.3 GB in bfloat16."""


@jax.jit
def _data(t, row):
    """Small numbers that differ from step to step and from row to row."""
    return (((t * 7 + row * 3 + t // 11) % 17 - 8) / 16).astype(jnp.bfloat16)


def _whole(axis):
    shape = (STEPS, ROWS) if axis == 0 else (ROWS, STEPS)
    return jax.jit(
        lambda: _data(lax.broadcasted_iota(jnp.int32, shape, axis), lax.broadcasted_iota(jnp.int32, shape, 1 - axis))
    )()


@pytest.mark.gpu
@pytest.mark.parametrize("axis", [0, 1])
def test_two_thousand_million_elements_and_their_gradient(axis):
    x = _whole(axis)
    loss = lambda x, y: jnp.sum(
        rtj.gae(x, y, bootstrap_value=0.0, time_axis=axis, implementation="triton").advantages, dtype=jnp.float32
    )
    advantages = jax.jit(
        lambda x: rtj.gae(x, x, bootstrap_value=0.0, time_axis=axis, implementation="triton").advantages
    )(x)
    gradient = jax.jit(jax.grad(loss))(x, x)
    rows = np.array([0, 1, ROWS // 2, ROWS - 2, ROWS - 1])
    some = _data(np.arange(STEPS)[:, None], rows[None, :])
    want = rtj.gae(some, some, bootstrap_value=0.0, implementation="scan").advantages
    weights = 0.99 * 0.95
    want_gradient = (1 - weights ** np.arange(1, STEPS + 1)) / (1 - weights)
    for got, reference in ((advantages, want), (gradient, np.tile(want_gradient[:, None], len(rows)))):
        found = np.asarray(jnp.take(got, rows, axis=1 - axis), np.float32)
        found = found if axis == 0 else found.T
        np.testing.assert_allclose(found, np.asarray(reference, np.float32), rtol=2**-7, atol=2**-6)
