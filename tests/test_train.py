"""Training, as a person runs it."""

import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("gymnax", reason="training needs gymnax, which is not installed (it caps JAX below 0.12)")

import jax
import jax.numpy as jnp

import rltriton_jax as rtj
from rltriton_jax.__main__ import main
from rltriton_jax.scan.lowering import implementation_on
from rltriton_jax.train.config import Config
from rltriton_jax.train.estimates import ESTIMATES, Steps


@pytest.fixture(autouse=True)
def as_users_have_it():
    """Gymnax promotes implicitly."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("estimator", ["gae", "lambda_returns", "vtrace"])
def test_a_short_run_writes_its_results(estimator, tmp_path, capsys):
    assert main(["train", "--steps", "4096", "--estimator", estimator, "--out", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert result["steps"] == 4096 and result["eval_episodes"] >= 64 and result["eval_mean_return"] > 5
    assert result["implementation"] == implementation_on(jax.default_backend())
    assert (tmp_path / f"CartPole-v1-{estimator}-seed0.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / f"CartPole-v1-{estimator}-seed0.json").read_text()) == result


PAIRS = [("hand_written", "hand_written_drop_in"), ("rlax", "rlax_drop_in"), ("brax", "brax_drop_in")]


@pytest.mark.parametrize(("original", "drop_in"), PAIRS)
def test_a_drop_in_gives_the_learner_the_same_targets(original, drop_in, rng):
    if original != "hand_written":
        pytest.importorskip(original)
    values = [rng.normal(size=(9, 4)).astype("float32") for _ in range(3)]
    flags = [jnp.asarray(rng.random((9, 4)) < 0.2) for _ in range(2)]
    steps = Steps(values[0], values[1], values[1][0], values[2], *flags, jnp.zeros((9, 4)))
    for got, want in zip(ESTIMATES[drop_in](steps, Config()), ESTIMATES[original](steps, Config())):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_cartpole_is_learned(tmp_path, capsys):
    assert main(["train", "--steps", "200000", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["eval_mean_return"] >= 400


def test_continuous_actions_train(tmp_path, capsys):
    assert main(["train", "--env", "Pendulum-v1", "--steps", "4096", "--out", str(tmp_path)]) == 0


@pytest.mark.parametrize("estimator", ["gae", "brax_drop_in", "brax"])
def test_brax_learns_with_each_source_of_advantages(estimator, tmp_path, capsys):
    pytest.importorskip("brax", reason="brax is not installed")
    options = ["--env", "brax/inverted_pendulum", "--steps", "40960", "--estimator", estimator]
    assert main(["train", *options, "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["eval_mean_return"] >= 50


def test_braxs_ends_are_told_apart_and_the_final_observation_is_kept():
    """A time limit of two steps: it truncates before the pole can fall, and the observation is then the first one."""
    pytest.importorskip("brax", reason="brax is not installed")
    from rltriton_jax.train import environments

    environment = environments.BraxEnvironment.make("inverted_pendulum", limit=2)
    first, state = environment.reset(jax.random.split(jax.random.key(0), 3))
    step = jax.jit(lambda s: environment.step(None, s, jnp.full((3, 1), 0.1)))
    _, state, _, terminated, truncated, _ = step(state)
    assert not np.any(terminated | truncated)
    after, _, _, terminated, truncated, final = step(state)
    assert np.all(truncated) and not np.any(terminated)
    np.testing.assert_array_equal(after, first)
    assert np.all(np.any(final != first, axis=-1))


def test_braxs_final_observation_survives_its_reset():
    """An environment that gains the same speed at each step, in episodes of two; its observation is a dict."""
    pytest.importorskip("brax", reason="brax is not installed")
    from brax import envs
    from brax.envs.wrappers import training

    env = training.VmapWrapper(envs.get_environment("fast", obs_mode="dict_state"))
    env = training.EpisodeWrapper(env, episode_length=2, action_repeat=1)
    env = training.AutoResetWrapper(rtj.compat.brax.keep_final_observation(env))

    def step(state, _):
        state = env.step(state, jnp.ones((3, 1)))
        return state, (state.obs, state.info["final_obs"])

    _, (after, final) = jax.lax.scan(step, env.reset(jax.random.split(jax.random.PRNGKey(0), 3)), None, 4)
    speeds = [np.round(obs["state"][:, 0, 1], 4).tolist() for obs in (after, final)]
    np.testing.assert_allclose(speeds, [[0.02, 0, 0.02, 0], [0.02, 0.04, 0.02, 0.04]], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--env", "Cartpole"], "--env Cartpole is not known"),
        (["--steps", "0"], "--steps is 0"),
        (["--steps", "10"], "less than one rollout"),
        (["--num-envs", "-1"], "--num-envs is -1"),
        (["--num-envs", "3", "--num-steps", "5"], "multiple of the 8 minibatches"),
        (["--seed", "-1"], "--seed is -1"),
        (["--out", "/proc/nowhere"], "--out /proc/nowhere cannot be written"),
        (["--implementation", "triton"], "needs a CUDA or ROCm device"),
    ],
)
def test_what_a_person_gets_wrong_is_one_line_and_a_failure(options, message, tmp_path, capsys):
    if "--out" not in options:
        options = [*options, "--out", str(tmp_path)]
    assert message in failure(options, capsys)


def failure(options, capsys):
    """The one line that a failed run says."""
    assert main(["train", *options]) != 0
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rltriton_jax train:")]
    return error


def test_an_unknown_brax_environment_is_named_or_brax_is(tmp_path, capsys):
    installed = importlib.util.find_spec("brax") is not None
    error = failure(["--env", "brax/inverted", "--out", str(tmp_path)], capsys)
    assert ("--env brax/inverted is not known" if installed else "pip install 'rltriton-jax[examples,brax]'") in error


def test_time_limits_bootstrap_from_the_true_final_observation(monkeypatch):
    """Every step of this environment ends its episode by a time limit; the targets see V(final), not V(reset)."""
    from rltriton_jax.train import environments, ppo

    environment = environments.make("CartPole-v1")
    environment = replace(environment, params=environment.params.replace(max_steps_in_episode=1))
    seen = {}

    def spy(rewards, values, **kwargs):
        seen.update(kwargs, rewards=rewards, values=values)
        return rtj.Estimate(rewards, values)

    monkeypatch.setattr(rtj, "gae", spy)
    config = Config(num_envs=4, num_steps=8, steps=32, minibatches=1, epochs=1)
    jaxpr = jax.make_jaxpr(ppo.make_train(config, environment, lambda *_: None))(jax.random.key(0))
    assert {"terminated", "truncated", "bootstrap_value", "final_values"} <= seen.keys() and jaxpr
    keys = jax.random.split(jax.random.key(1), 4)
    reset, state = environment.reset(keys)
    after, _, _, terminated, truncated, final = environment.step(keys, state, jnp.zeros(4, int))
    assert bool(jnp.all(truncated & ~terminated)) and not np.allclose(after, final)
    assert not np.allclose(final, reset)
