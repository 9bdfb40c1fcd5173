"""Training, as a person runs it."""

import argparse
import importlib.util
import json
from dataclasses import fields, replace

import numpy as np
import pytest

pytest.importorskip("gymnax", reason="training needs gymnax, which is not installed (it caps JAX below 0.12)")

import jax
import jax.numpy as jnp

import rltriton_jax as rtj
from rltriton_jax.__main__ import main
from rltriton_jax.scan.lowering import implementation_on
from rltriton_jax.train.config import Config
from rltriton_jax.train.estimates import ESTIMATES, Steps, implementation_of
from rltriton_jax.train.options import add_settings, config_from
from rltriton_jax.train.training import Training


@pytest.fixture(autouse=True)
def as_users_have_it():
    """Gymnax promotes implicitly; the process has it so, as a run has threads."""
    users = {"jax_numpy_dtype_promotion": "standard", "jax_numpy_rank_promotion": "allow"}
    ours = {name: getattr(jax.config, name) for name in users}
    for settings in (users, ours):
        for name, value in settings.items():
            jax.config.update(name, value)
        if settings is users:
            yield


@pytest.mark.parametrize("estimator", ["gae", "lambda_returns", "vtrace"])
def test_a_short_run_writes_its_results(estimator, tmp_path, capsys):
    assert main(["train", "--steps", "4096", "--estimator", estimator, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    (line,) = said.out.splitlines()
    result = json.loads(line)
    assert result["steps"] == 4096 and result["eval_episodes"] >= 64 and result["eval_mean_return"] > 5
    assert result["implementation"] == implementation_on(jax.default_backend()) and not result["interrupted"]
    files = [tmp_path / f"CartPole-v1-{estimator}-seed0.{kind}" for kind in ("json", "png")]
    assert sorted(tmp_path.iterdir()) == files
    assert json.loads(files[0].read_text()) == result and files[1].read_bytes().startswith(b"\x89PNG")
    assert said.err.splitlines()[-1] == f"results are in {files[0]} and {files[1]}"


def test_updates_one_by_one_are_the_training_as_one_program():
    from rltriton_jax.train import environments, ppo

    config = Config(num_envs=4, num_steps=32, steps=384, minibatches=2, epochs=2)
    environment = environments.make("CartPole-v1")
    init, update = ppo.make_learner(config, environment)
    carry, update = jax.jit(init)(jax.random.key(0)), jax.jit(update)
    history = []
    for _ in range(3):
        carry, mean_return = update(carry)
        history.append(mean_return)
    params, together = jax.jit(ppo.make_train(config, environment))(jax.random.key(0))
    np.testing.assert_array_equal(together, history)
    for got, want in zip(jax.tree.leaves(carry.train.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.fixture
def interrupted(monkeypatch):
    """Runs that are interrupted before their first update."""
    from rltriton_jax.train import ppo

    def make_learner(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ppo, "make_learner", make_learner)


def test_an_interrupted_run_says_so(interrupted, tmp_path, capsys):
    assert main(["train", "--out", str(tmp_path)]) == 130
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert (result["interrupted"], result["steps"], result["eval_mean_return"]) == (True, 0, None)
    assert "interrupted after 0 of 499712 steps" in said.err
    assert json.loads((tmp_path / "CartPole-v1-gae-seed0.json").read_text()) == result


def test_a_run_that_has_come_to_nothing_leaves_earlier_results(interrupted, tmp_path, capsys):
    earlier = tmp_path / "CartPole-v1-gae-seed0.json"
    earlier.write_text("earlier")
    assert main(["train", "--out", str(tmp_path)]) == 130
    assert earlier.read_text() == "earlier" and [earlier] == list(tmp_path.iterdir())
    assert capsys.readouterr().err.splitlines()[-1] == "the results of an earlier run stay as they are"


@pytest.mark.parametrize("estimator", ESTIMATES)
def test_what_ran_is_named(estimator):
    assert implementation_of(Config(estimator=estimator), "cpu") in ("chunked_scan", "hand_written", "rlax", "brax")


def test_every_setting_is_an_option():
    parser = argparse.ArgumentParser()
    add_settings(parser)
    given = Config(
        env="Acrobot-v1", steps=999, num_envs=2, num_steps=6, seed=7, estimator="vtrace", implementation="scan",
        gamma=0.5, lambda_=0.25, learning_rate=0.1, epochs=2, minibatches=3, clip=0.3, entropy=0.0, value_weight=1.0,
        max_grad_norm=9.0, eval_episodes=5,
    )  # fmt: skip
    names = [f.name for f in fields(Config)]
    assert all(getattr(given, name) != getattr(Config(), name) for name in names)
    words = [w for n in names for w in ("--" + n.strip("_").replace("_", "-"), str(getattr(given, n)))]
    assert config_from(parser.parse_args(words)) == given
    assert config_from(parser.parse_args([])) == Config()


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


WRONG = [
    (["--env", "Cartpole"], "--env Cartpole is not known"),
    (["--env", "Cart\nPole"], "--env Cart Pole is not known"),
    (["--steps", "0"], "--steps is 0"),
    (["--steps", "10"], "less than one rollout"),
    (["--steps", "1e6"], "invalid int value: '1e6'"),
    (["--steps", "99999999999999999999"], "it must be at most 137438953471"),
    (["--num-envs", "-1"], "--num-envs is -1"),
    (["--num-envs", "3", "--num-steps", "5"], "multiple of the 8 minibatches"),
    (["--num-envs", "65536", "--num-steps", "65536", "--steps", "99999999999"], "a rollout has at most 2147483647"),
    (["--seed", "-1"], "--seed is -1"),
    (["--seed", "4294967296"], "at most 4294967295"),
    (["--gamma", "1.5"], "--gamma is 1.5; it must be at least 0 and at most 1"),
    (["--gamma", "nan"], "--gamma is nan"),
    (["--lambda", "-0.1"], "--lambda is -0.1"),
    (["--learning-rate", "inf"], "--learning-rate is inf"),
    (["--learning-rate", "1e39"], "--learning-rate is 1e+39"),
    (["--max-grad-norm", "0"], "it must be more than 0"),
    (["--epochs", "0"], "--epochs is 0"),
    (["--minibatches", "0"], "--minibatches is 0"),
    (["--eval-episodes", "0"], "--eval-episodes is 0"),
    (["--clip", "x"], "invalid float value: 'x'"),
    (["--estimator", "gea"], "invalid choice: 'gea'"),
    (["--implementation", "triton"], "--implementation triton needs a CUDA or ROCm device"),
    (["--implementation", "scan", "--estimator", "rlax"], "says nothing to --estimator rlax"),
    (["--step", "4096"], "unrecognized arguments: --step"),
    (["--out", "/proc/nowhere"], "--out /proc/nowhere cannot be written"),
    (["--out", "FOLDER/file"], "file cannot be written"),
    (["--out", "FOLDER/taken"], "CartPole-v1-gae-seed0.json cannot be written: it is a folder"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_a_person_gets_wrong_is_one_line_and_a_failure(options, message, tmp_path, capsys):
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "CartPole-v1-gae-seed0.json").mkdir(parents=True)
    if "--out" not in options:
        options = [*options, "--out", str(tmp_path / "new")]
    assert message in failure([o.replace("FOLDER", str(tmp_path)) for o in options], capsys)
    assert not (tmp_path / "new").exists()


def failure(options, capsys):
    """The one line that a run says which fails before any work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "run", lambda self: pytest.fail("it began"))
        assert main(["train", *options]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("rltriton_jax train: ")
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
    jaxpr = jax.make_jaxpr(ppo.make_train(config, environment))(jax.random.key(0))
    assert {"terminated", "truncated", "bootstrap_value", "final_values"} <= seen.keys() and jaxpr
    keys = jax.random.split(jax.random.key(1), 4)
    reset, state = environment.reset(keys)
    after, _, _, terminated, truncated, final = environment.step(keys, state, jnp.zeros(4, int))
    assert bool(jnp.all(truncated & ~terminated)) and not np.allclose(after, final)
    assert not np.allclose(final, reset)
