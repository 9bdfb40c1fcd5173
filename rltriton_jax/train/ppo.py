"""Proximal policy optimisation as one jitted program: of an update, or of the whole training.

References: Schulman et al. 2017, https://arxiv.org/abs/1707.06347. Advantages are estimated anew with the current
critic before each epoch (Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import rltriton_jax as rtj
from rltriton_jax.train import network
from rltriton_jax.train.config import Config
from rltriton_jax.train.environments import Environment
from rltriton_jax.train.estimates import ESTIMATES, Steps


class Rollout(NamedTuple):
    """[num_steps, num_envs] each; observations have a feature axis."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_observation: jax.Array


class Scaling(NamedTuple):
    """Running second moment of the discounted return, by which rewards are divided."""

    returns: jax.Array
    moment: jax.Array
    steps: jax.Array


class Carry(NamedTuple):
    train: TrainState
    state: Any
    observation: jax.Array
    episode_return: jax.Array
    scaling: Scaling
    key: jax.Array


def make_train(config: Config, environment: Environment):
    """Returns `train(key) -> (parameters, history)`, all updates in one program; history holds their mean returns."""
    init, update = make_learner(config, environment)

    def train(key):
        carry, history = jax.lax.scan(lambda carry, _: update(carry), init(key), None, config.num_updates)
        return carry.train.params, history

    return train


def make_learner(config: Config, environment: Environment):
    """Returns `init(key) -> carry` and `update(carry) -> (carry, mean return of the episodes that ended, else NaN)`."""
    net = network.ActorCritic(environment.num_actions, environment.continuous)
    apply: Callable[..., Any] = net.apply

    def init(key):
        key, key_net, key_env = jax.random.split(key, 3)
        observation, state = environment.reset(jax.random.split(key_env, config.num_envs))
        decay = optax.linear_schedule(
            config.learning_rate, 0.0, config.num_updates * config.epochs * config.minibatches
        )
        optimiser = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(decay, eps=1e-5))
        train = TrainState.create(apply_fn=apply, params=net.init(key_net, observation), tx=optimiser)
        zeros = jnp.zeros(config.num_envs)
        return Carry(train, state, observation, zeros, Scaling(zeros, jnp.float32(0), jnp.float32(0)), key)

    def rollout(carry: Carry):
        def step(inner, _):
            state, observation, key = inner
            key, key_action, key_step = jax.random.split(key, 3)
            policy, _ = apply(carry.train.params, observation)
            action = network.sample(key_action, policy, environment.continuous)
            log_prob = network.log_prob(policy, action, environment.continuous)
            following, state, reward, terminated, truncated, final = environment.step(
                jax.random.split(key_step, config.num_envs), state, action
            )
            taken = Rollout(observation, action, log_prob, reward, terminated, truncated, final)
            return (state, following, key), taken

        (state, observation, key), batch = jax.lax.scan(
            step, (carry.state, carry.observation, carry.key), None, config.num_steps
        )
        return carry._replace(state=state, observation=observation, key=key), batch

    def finished_returns(carry: Carry, batch: Rollout):
        """The returns of the episodes that ended in this rollout, and the return so far of those that go on."""
        done = batch.terminated | batch.truncated
        returns = rtj.episodic_prefix_sum(batch.reward, done, initial=carry.episode_return)
        ended = jnp.sum(done)
        mean = jnp.where(ended > 0, jnp.sum(jnp.where(done, returns, 0)) / jnp.maximum(ended, 1), jnp.nan)
        return mean, jnp.where(done[-1], 0.0, returns[-1])

    def scaled_rewards(scaling: Scaling, batch: Rollout):
        """Rewards over the root mean square of the discounted return that they lead up to."""
        done = batch.terminated | batch.truncated
        returns = rtj.eligibility_traces(batch.reward, done, gamma=config.gamma, lambda_=1.0, initial=scaling.returns)
        steps = scaling.steps + returns.size
        moment = scaling.moment + jnp.sum(returns**2)
        reward = batch.reward / jnp.sqrt(moment / steps + 1e-8)
        return Scaling(jnp.where(done[-1], 0.0, returns[-1]), moment, steps), reward

    def estimate(params, batch: Rollout, reward, last_observation) -> rtj.Estimate:
        policy, values = apply(params, batch.observation)
        log_prob = network.log_prob(policy, batch.action, environment.continuous)
        steps = Steps(
            reward,
            values,
            apply(params, last_observation)[1],
            apply(params, batch.final_observation)[1],
            batch.terminated,
            batch.truncated,
            log_prob - batch.log_prob,
        )
        return ESTIMATES[config.estimator](steps, config)

    def loss(params, batch: Rollout, target: rtj.Estimate):
        policy, values = apply(params, batch.observation)
        log_ratio = network.log_prob(policy, batch.action, environment.continuous) - batch.log_prob
        ratio = jnp.exp(log_ratio)
        advantage = (target.advantages - jnp.mean(target.advantages)) / (jnp.std(target.advantages) + 1e-8)
        clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
        actor = -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))
        critic = jnp.mean((values - target.targets) ** 2)
        entropy = jnp.mean(network.entropy(policy, environment.continuous))
        return actor + config.value_weight * critic - config.entropy * entropy

    def update(carry: Carry):
        carry, batch = rollout(carry)
        mean_return, episode_return = finished_returns(carry, batch)
        scaling, reward = scaled_rewards(carry.scaling, batch)
        key, key_epochs = jax.random.split(carry.key)

        def minibatch(train, data):
            return train.apply_gradients(grads=jax.grad(loss)(train.params, *data)), None

        def epoch(train, key):
            target = jax.lax.stop_gradient(estimate(train.params, batch, reward, carry.observation))
            order = jax.random.permutation(key, config.num_envs * config.num_steps)

            def shuffled(x):
                return x.reshape(-1, *x.shape[2:])[order].reshape(config.minibatches, -1, *x.shape[2:])

            return jax.lax.scan(minibatch, train, jax.tree.map(shuffled, (batch, target)))[0], None

        train, _ = jax.lax.scan(epoch, carry.train, jax.random.split(key_epochs, config.epochs))
        carry = carry._replace(train=train, key=key, episode_return=episode_return, scaling=scaling)
        return carry, mean_return

    return init, update


def make_evaluate(config: Config, environment: Environment):
    """Returns `evaluate(parameters, key)`: the return of each environment's first episode under the policy's mode."""
    net = network.ActorCritic(environment.num_actions, environment.continuous)

    def evaluate(params, key):
        key, key_reset = jax.random.split(key)
        observation, state = environment.reset(jax.random.split(key_reset, config.eval_episodes))

        def step(inner):
            t, key, observation, state, alive, returns = inner
            key, key_step = jax.random.split(key)
            action = network.mode(net.apply(params, observation)[0], environment.continuous)
            keys = jax.random.split(key_step, config.eval_episodes)
            observation, state, reward, terminated, truncated, _ = environment.step(keys, state, action)
            returns += jnp.where(alive, reward, 0.0)
            return t + 1, key, observation, state, alive & ~(terminated | truncated), returns

        def running(inner):
            return (inner[0] < environment.limit) & jnp.any(inner[4])

        alive = jnp.ones(config.eval_episodes, bool)
        start = (jnp.int32(0), key, observation, state, alive, jnp.zeros(config.eval_episodes))
        final = jax.lax.while_loop(running, step, start)
        return final[-1], ~final[4]

    return evaluate
