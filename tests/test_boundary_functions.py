"""From what environments and buffers give to the estimators' arguments, held against loops in Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rltriton_jax as rtj
from rltriton_jax import boundaries

BATCHES = [(), (3,), (2, 3)]
STEPS = [0, 1, 17]
SEEDS = range(3)
DTYPES = [bool, np.int32, np.uint8, np.float32]

over_windows = pytest.mark.parametrize(
    ("seed", "steps", "batch"), [(seed, steps, batch) for seed in SEEDS for steps in STEPS for batch in BATCHES]
)


def columns(batch):
    return [(slice(None), *b) for b in np.ndindex(*batch)]


def flags(rng, shape, dtype=bool):
    return np.asarray(rng.random(shape) < 0.4).astype(dtype)


def eagerly_and_jitted(function, *args):
    """The results of both, which are the same, as NumPy arrays."""
    eager = jax.tree.map(np.asarray, function(*args))
    jitted = jax.tree.map(np.asarray, jax.jit(function)(*jax.tree.map(jnp.asarray, args)))
    for x, y in zip(jax.tree.leaves(eager), jax.tree.leaves(jitted), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
    return eager


@over_windows
def test_an_episode_is_done_where_the_next_step_starts_one(seed, steps, batch):
    rng = np.random.default_rng(seed)
    starts, next_start = flags(rng, (steps, *batch)), flags(rng, batch)
    done = eagerly_and_jitted(boundaries.dones_from_starts, starts, next_start)
    assert done.shape == starts.shape
    for c in columns(batch):
        for t in range(steps):
            assert done[c][t] == (starts[c][t + 1] if t + 1 < steps else next_start[c[1:]])


@pytest.mark.parametrize("of_next", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dones_have_the_dtype_of_the_starts(dtype, of_next):
    starts, ones = np.zeros((4, 3), dtype), np.ones(3, of_next)
    for next_start in (ones, ones[0], ones[0].item()):
        done = boundaries.dones_from_starts(starts, next_start)
        assert done.dtype == dtype
        np.testing.assert_array_equal(done.astype(int), np.arange(4)[:, None] // 3 * np.ones(3, int))


def next_step_rollout(rng, steps):
    """V, whether row 0 is a reset row, and for each row its flags, V of where it led, and whether it is no reset row.

    V is 100 times the number of the observation's episode plus its time there.
    """
    episode, time = 0, 0
    resets = row_0_resets = rng.random() < 0.5
    values, rows = [0], []
    for _ in range(steps):
        in_episode = not resets
        episode, time = (episode, time + 1) if in_episode else (episode + 1, 0)
        resets = in_episode and rng.random() < 0.4
        by_time = rng.random() < 0.5
        values.append(100 * episode + time)
        rows.append((resets and not by_time, resets and by_time, values[-1], in_episode))
    return np.array(values, np.float32), row_0_resets, np.array(rows).reshape(steps, 4)


@over_windows
def test_next_step_autoreset_leaves_out_reset_rows_and_knows_final_values(seed, steps, batch):
    rng = np.random.default_rng(seed)
    values, row_0_resets, rows = zip(*[next_step_rollout(rng, steps) for _ in columns(batch)])
    values = np.stack(values, -1).reshape(steps + 1, *batch)
    previous_done = np.array(row_0_resets).reshape(batch)
    terminated, truncated, final_values, valid = np.stack(rows, -1).transpose(1, 0, 2).reshape(4, steps, *batch)
    terminated, truncated = terminated.astype(bool), truncated.astype(bool)
    got = eagerly_and_jitted(boundaries.next_step_autoreset, values, terminated, truncated, previous_done)
    want = {
        "values": values,
        "terminated": terminated,
        "truncated": truncated,
        "final_values": final_values.astype(np.float32),
        "valid": valid.astype(bool),
    }
    assert got.keys() == want.keys()
    for name, x in want.items():
        assert got[name].dtype == x.dtype
        np.testing.assert_array_equal(got[name], x)


def test_one_flag_may_stand_for_the_rows_before_all_environments():
    values, none = np.zeros((3, 2), np.float32), np.zeros((2, 2), np.float32)
    for previous_done, first in ((False, True), (1, False), (np.float32(0), True)):
        valid = boundaries.next_step_autoreset(values, none, none, previous_done)["valid"]
        np.testing.assert_array_equal(valid, [[first, first], [True, True]])


def test_next_step_autoreset_is_what_gymnasium_does():
    gymnasium = pytest.importorskip("gymnasium")

    class Counter(gymnasium.Env):
        """Observes 10 times its episode's number plus the time, 3 at the end; terminates and truncates in turn."""

        observation_space = gymnasium.spaces.Box(0, 1000, (), np.float32)
        action_space = gymnasium.spaces.Discrete(2)
        state = -10

        def reset(self, **_):
            self.state = self.state // 10 * 10 + 10
            return np.float32(self.state), {}

        def step(self, action):
            self.state += 1
            ends, even = self.state % 10 == 3, self.state // 10 % 2 == 0
            return np.float32(self.state), 1.0, ends and even, ends and not even, {}

    environments = gymnasium.vector.SyncVectorEnv([Counter, Counter])
    observations, rows = [environments.reset()[0]], []
    for _ in range(10):
        observation, *row, _ = environments.step(np.zeros(2, int))
        observations.append(observation.copy())
        rows.append([np.array(x) for x in row])
    rewards, terminated, truncated = map(np.stack, zip(*rows))
    for start in range(9):  # Windows that begin anywhere in the rollout.
        window, before = slice(start, None), start - 1
        previous_done = (terminated | truncated)[before] if start else False
        got = boundaries.next_step_autoreset(
            np.stack(observations)[start:], terminated[window], truncated[window], previous_done
        )
        np.testing.assert_array_equal(got["valid"], rewards[window] == 1)
        ends = terminated[window] | truncated[window]
        assert np.all(got["final_values"][ends] % 10 == 3)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("segments", [0, 1, 6])
@pytest.mark.parametrize("seed", SEEDS)
def test_segments_lie_one_behind_the_other_and_padding_behind_them(seed, segments, padding, batch):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, (segments, *batch))
    steps = int(lengths.sum(axis=0).max(initial=0)) + padding
    segment_ids, valid = eagerly_and_jitted(lambda n: boundaries.segments_from_lengths(n, steps), lengths)
    assert segment_ids.shape == valid.shape == (steps, *batch)
    assert segment_ids.dtype == np.int32 and valid.dtype == bool
    for c in columns(batch):
        want = [k for k, length in enumerate(lengths[c]) for _ in range(length)]
        np.testing.assert_array_equal(segment_ids[c], want + [segments] * (steps - len(want)))
        np.testing.assert_array_equal(valid[c], np.arange(steps) < len(want))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint32, np.int64])
def test_lengths_of_few_bits_may_have_a_sum_of_more(dtype):
    lengths = np.array([100, 100, 100], dtype)
    for given in (lengths, jnp.asarray(lengths), lengths.tolist()):
        segment_ids, valid = boundaries.segments_from_lengths(given, 301)
        np.testing.assert_array_equal(segment_ids, np.repeat(np.arange(4), [100, 100, 100, 1]))
        np.testing.assert_array_equal(valid, np.arange(301) < 300)


def test_traced_segments_that_do_not_fit_end_with_the_row():
    of_traced = jax.jit(lambda lengths: boundaries.segments_from_lengths(lengths, 4))
    segment_ids, valid = of_traced(jnp.array([3, 2, 2]))
    np.testing.assert_array_equal(segment_ids, [0, 0, 0, 1])
    assert np.all(valid)


@over_windows
def test_deinterleaving_keeps_the_order_of_each_trajectory_and_can_be_undone(seed, steps, batch):
    rng = np.random.default_rng(seed)
    ids = rng.integers(-3, 4, (steps, *batch))
    order, inverse = eagerly_and_jitted(boundaries.deinterleave, ids)
    assert order.shape == inverse.shape == ids.shape
    x = rng.normal(size=ids.shape).astype(np.float32)
    together = np.asarray(jnp.take_along_axis(x, order, 0))
    for c in columns(batch):
        want = [x[c][t] for i in sorted(set(ids[c])) for t in range(steps) if ids[c][t] == i]
        np.testing.assert_array_equal(together[c], want)
        if not batch:
            np.testing.assert_array_equal(x[order], want)
            np.testing.assert_array_equal(x[order][inverse], x)
    np.testing.assert_array_equal(jnp.take_along_axis(together, inverse, 0), x)


@pytest.mark.parametrize("seed", SEEDS)
def test_advantages_of_a_deinterleaved_buffer_are_those_of_each_trajectory(seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 4, 30)
    rewards, values, next_values = rng.normal(size=(3, 30)).astype(np.float32)
    order, inverse = boundaries.deinterleave(ids)
    segment_ids = ids[order]
    cuts = np.append(segment_ids[1:] != segment_ids[:-1], True)
    together = rtj.gae(rewards[order], values[order], None, cuts, next_values=next_values[order])
    got = together.advantages[inverse]
    for i in np.unique(ids):
        own = rtj.gae(rewards[ids == i], values[ids == i], next_values=next_values[ids == i])
        np.testing.assert_allclose(got[ids == i], own.advantages, rtol=1e-5, atol=1e-5)


X = np.ones((5, 3), np.float32)
FLAGS = np.zeros((4, 3), bool)
SMALL = np.full((4, 3), 0.5, np.float32)
dones, autoreset = boundaries.dones_from_starts, boundaries.next_step_autoreset
segments, deinterleave = boundaries.segments_from_lengths, boundaries.deinterleave

BAD = {
    "next_start per step": (
        lambda: dones(FLAGS, FLAGS), ValueError, r"next_start has shape \(4, 3\), but starts has.*the shape \(3,\)"),
    "a scalar for starts": (lambda: dones(True, False), ValueError, r"starts has shape \(\).*time"),
    "starts that are no flags": (
        lambda: dones(SMALL, 0), ValueError, r"starts has shape \(4, 3\) and holds 0\.5"),
    "next_start that is no flag": (lambda: dones(FLAGS, 2), ValueError, r"next_start.*holds 2"),
    "next_start forgotten": (lambda: dones(FLAGS), TypeError, "not given next_start"),
    "starts under another name": (
        lambda: dones(start=FLAGS, next_start=0), TypeError, "did you mean starts"),
    "values without V(s_T)": (
        lambda: autoreset(X[1:], FLAGS, FLAGS, False), ValueError,
        r"values has shape \(4, 3\), but terminated has shape \(4, 3\).*\(5, 3\).*V\(s_T\).*concatenate"),
    "values of other environments": (
        lambda: autoreset(X[:, :2], FLAGS, FLAGS, False), ValueError, r"values has shape \(5, 2\).*\(5, 3\)"),
    "truncated of another shape": (
        lambda: autoreset(X, FLAGS, FLAGS[0], False), ValueError, r"truncated has shape \(3,\).*terminated.*\(4, 3\)"),
    "no truncated": (lambda: autoreset(X, FLAGS, None, False), ValueError, "truncated is None"),
    "no previous_done": (lambda: autoreset(X, FLAGS, FLAGS, None), ValueError, "previous_done is None"),
    "previous_done of other environments": (
        lambda: autoreset(X, FLAGS, FLAGS, FLAGS[0, :2]), ValueError, r"previous_done has shape \(2,\).*\(3,\)"),
    "probabilities for flags": (lambda: autoreset(X, SMALL, FLAGS, False), ValueError, r"terminated.*0\.5.*gamma"),
    "probabilities before": (lambda: autoreset(X, FLAGS, FLAGS, SMALL[0]), ValueError, r"previous_done.*holds 0\.5"),
    "lengths of floats": (lambda: segments(np.ones(3), 4), TypeError, r"lengths has dtype float64.*\(3,\).*astype"),
    "lengths of booleans": (lambda: segments(np.ones(3, bool), 4), TypeError, r"lengths has dtype bool.*integers"),
    "one length": (lambda: segments(3, 4), ValueError, r"lengths has shape \(\).*\[K, \*batch\]"),
    "one length of floats": (lambda: segments(3.0, 4), TypeError, r"lengths has dtype float64"),
    "lengths that do not fit": (
        lambda: segments(np.array([[1, 2], [3, 3]]), 4), ValueError, r"lengths \(shape \(2, 2\)\).*sum 5.*steps is 4"),
    "lengths of JAX that do not fit": (lambda: segments(jnp.array([3, 2]), 4), ValueError, "sum 5.*steps is 4"),
    "a negative length": (lambda: segments([2, -1], 4), ValueError, r"lengths \(shape \(2,\)\) holds -1.*at least 0"),
    "a length beyond JAX's integers": (
        lambda: segments([2**40], 4), ValueError, r"lengths.*beyond JAX's int32.*at most steps, 4"),
    "no lengths": (lambda: segments(None, 4), ValueError, "lengths is None"),
    "negative steps": (lambda: segments([0], -1), ValueError, "steps is -1"),
    "steps of a float": (lambda: segments([0], 4.0), TypeError, "steps is 4.0"),
    "steps that are traced": (
        lambda: jax.jit(segments)(jnp.array([0]), 4), TypeError, r"steps is traced.*static_argnames=\"steps\""),
    "ids of floats": (
        lambda: deinterleave(X[0]), TypeError, r"ids has dtype float32 and shape \(3,\).*ids\.astype\(np\.int32\)"),
    "ids of traced floats": (lambda: jax.jit(deinterleave)(X[0]), TypeError, "ids has dtype float32"),
    "one id": (lambda: deinterleave(3), ValueError, r"ids has shape \(\).*time axis"),
    "ids beyond JAX's integers": (
        lambda: deinterleave(np.array([2**40, 1])), ValueError, r"ids.*beyond JAX's int32.*np\.unique"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD.values(), ids=BAD)
def test_a_wrong_call_says_what_to_pass(call, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        call()
