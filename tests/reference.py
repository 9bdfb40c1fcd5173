"""Float64 loops straight from the definitions, one step after the other, time on axis 0.

Every function takes `minus`, the sign of what is subtracted: with -1 it is the definition, and with +1 on absolute
inputs it is the scale by which rounding errors are bounded.
"""

import numpy as np


def _float(x):
    return np.asarray(x, np.float64)


def _full(x, shape):
    """A hyperparameter at every step: of full rank per step, else over the batch."""
    return np.broadcast_to(_float(x), shape)


def _flags(x, shape):
    return np.zeros(shape, bool) if x is None else np.broadcast_to(np.asarray(x) != 0, shape)


def _pick(where, x, otherwise):
    return np.where(where, x, otherwise)


class Steps:
    """The arguments of one call at every step."""

    def __init__(self, rewards, terminated, truncated, gamma, lambda_=1.0):
        self.r = _float(rewards)
        shape = self.r.shape
        self.T, self.batch = shape[0], shape[1:]
        self.term, self.trunc = _flags(terminated, shape), _flags(truncated, shape)
        self.done = self.term | self.trunc
        self.gamma, self.lambda_ = _full(gamma, shape), _full(lambda_, shape)

    def successor(self, t, values, bootstrap_value, next_values, final_values):
        """V' of the true successor of step t, 0 where step t terminated."""
        if next_values is not None:
            following = _float(next_values)[t]
        else:
            if values is not None and t + 1 < len(values):
                following = _float(values)[t + 1]
            elif t == self.T - 1 and bootstrap_value is not None:
                following = np.broadcast_to(_float(bootstrap_value), self.batch)
            else:
                following = np.zeros(self.batch)
            if final_values is not None:
                following = _pick(self.trunc[t], _float(final_values)[t], following)
        return _pick(self.term[t], 0.0, following)


def gae(
    rewards, values, terminated=None, truncated=None, *, bootstrap_value=None, next_values=None, final_values=None,
    gamma=0.99, lambda_=0.95, on_truncation="bootstrap", minus=-1.0,
):  # fmt: skip
    s = Steps(rewards, terminated, truncated, gamma, lambda_)
    advantages, ahead = np.zeros_like(s.r), np.zeros(s.batch)
    for t in reversed(range(s.T)):
        successor = s.successor(t, values, bootstrap_value, next_values, final_values)
        delta = s.r[t] + s.gamma[t] * successor + minus * _float(values)[t]
        if on_truncation == "mask":
            delta = _pick(s.trunc[t] & ~s.term[t], 0.0, delta)
        ahead = delta + s.gamma[t] * s.lambda_[t] * _pick(s.done[t], 0.0, ahead)
        advantages[t] = ahead
    return advantages, advantages + _float(values)[: s.T]


def vtrace(
    rewards, values, log_rhos, terminated=None, truncated=None, *, bootstrap_value=None, next_values=None,
    final_values=None, gamma=0.99, lambda_=1.0, clip_rho=1.0, clip_c=1.0, clip_pg_rho=1.0, on_truncation="bootstrap",
    minus=-1.0,
):  # fmt: skip
    s = Steps(rewards, terminated, truncated, gamma, lambda_)
    rho = np.exp(_float(log_rhos))
    rho_bar, c, pg = (np.minimum(_full(clip, rho.shape), rho) for clip in (clip_rho, clip_c, clip_pg_rho))
    advantages, targets, ahead = np.zeros_like(s.r), np.zeros_like(s.r), np.zeros(s.batch)
    for t in reversed(range(s.T)):
        successor = s.successor(t, values, bootstrap_value, next_values, final_values)
        delta = better = s.r[t] + s.gamma[t] * successor + minus * _float(values)[t]
        if t < s.T - 1:
            mixed = (1 - s.lambda_[t]) * _float(values)[t + 1] + s.lambda_[t] * targets[t + 1]
            better = s.r[t] + s.gamma[t] * _pick(s.done[t], successor, mixed) + minus * _float(values)[t]
        if on_truncation == "mask":
            delta, better = (_pick(s.trunc[t] & ~s.term[t], 0.0, x) for x in (delta, better))
        advantages[t] = pg[t] * better
        ahead = rho_bar[t] * delta + s.gamma[t] * s.lambda_[t] * c[t] * _pick(s.done[t], 0.0, ahead)
        targets[t] = _float(values)[t] + ahead
    return advantages, targets


def retrace(
    rewards, q_values, log_rhos, terminated=None, truncated=None, *, next_state_values=None, next_q_values=None,
    next_target_probs=None, gamma=0.99, lambda_=1.0, clip_c=1.0, clip_rho=1.0, minus=-1.0,
):  # fmt: skip
    s = Steps(rewards, terminated, truncated, gamma, lambda_)
    q = _float(q_values)
    if next_state_values is None:
        probs, next_q = _float(next_target_probs), _float(next_q_values)
        next_state_values = np.sum(probs * _pick(probs == 0, 0.0, next_q), axis=-1)
    expected = _float(next_state_values)
    rho = np.exp(_float(log_rhos))
    clip_c, rho_bar = _full(clip_c, q.shape), np.minimum(_full(clip_rho, q.shape), rho)
    advantages, targets = np.zeros_like(q), np.zeros_like(q)
    error_ahead = np.zeros(s.batch)
    for t in reversed(range(s.T)):
        if t == s.T - 1:
            carried, better = np.zeros(s.batch), expected[t]
        else:
            carried = s.gamma[t] * s.lambda_[t] * _pick(s.done[t], 0.0, np.minimum(clip_c[t], rho[t + 1]) * error_ahead)
            better = _pick(s.done[t], expected[t], targets[t + 1])
        bootstrapped = s.r[t] + s.gamma[t] * _pick(s.term[t], 0.0, expected[t])
        advantages[t] = rho_bar[t] * (s.r[t] + s.gamma[t] * _pick(s.term[t], 0.0, better) + minus * q[t])
        error_ahead = bootstrapped + minus * q[t] + carried
        targets[t] = q[t] + error_ahead
    return advantages, targets


def lambda_returns(
    rewards, values=None, terminated=None, truncated=None, *, bootstrap_value=None, next_values=None,
    final_values=None, gamma=0.99, lambda_=0.95, minus=-1.0,
):  # fmt: skip
    s = Steps(rewards, terminated, truncated, gamma, lambda_)
    returns, ahead = np.zeros_like(s.r), np.zeros(s.batch)
    for t in reversed(range(s.T)):
        successor = s.successor(t, values, bootstrap_value, next_values, final_values)
        mixed = (1 - s.lambda_[t]) * successor + s.lambda_[t] * _pick(s.done[t], 0.0, ahead)
        stops = s.done[t] | (t == s.T - 1)
        ahead = s.r[t] + s.gamma[t] * _pick(stops, successor, mixed)
        returns[t] = ahead
    return (returns,)


def discounted_returns(
    rewards, terminated=None, truncated=None, *, bootstrap_value=None, final_values=None, gamma=0.99, minus=-1.0
):
    s = Steps(rewards, terminated, truncated, gamma)
    ahead = np.zeros(s.batch) if bootstrap_value is None else np.broadcast_to(_float(bootstrap_value), s.batch)
    returns = np.zeros_like(s.r)
    for t in reversed(range(s.T)):
        if final_values is not None:
            ahead = _pick(s.trunc[t], _float(final_values)[t], ahead)
        ahead = s.r[t] + s.gamma[t] * _pick(s.term[t], 0.0, ahead)
        returns[t] = ahead
    return (returns,)


def _trailing(x, ndim):
    return x.reshape(x.shape + (1,) * (ndim - x.ndim))


def eligibility_traces(gradients, done=None, *, gamma=0.99, lambda_=0.95, initial=None, minus=-1.0):
    g = _float(gradients)
    shape = g.shape if done is None else np.shape(done)
    decay = _trailing(_full(gamma, shape) * _full(lambda_, shape), g.ndim)
    done = _trailing(_flags(done, shape), g.ndim)
    traces = np.zeros_like(g)
    for t in range(len(g)):
        traces[t] = g[t]
        if t > 0:
            traces[t] += decay[t - 1] * _pick(done[t - 1], 0.0, traces[t - 1])
        elif initial is not None:
            traces[t] += decay[0] * _float(initial)
    return (traces,)


def episodic_prefix_sum(inputs, done=None, *, boundary="ends_at", initial=None, minus=-1.0):
    x = _float(inputs)
    done = _trailing(_flags(done, x.shape if done is None else np.shape(done)), x.ndim)
    before = np.zeros(x.shape[1:]) if initial is None else np.broadcast_to(_float(initial), x.shape[1:])
    sums = np.zeros_like(x)
    for t in range(len(x)):
        cut = done[t] if boundary == "starts_at" else (done[t - 1] if t else np.zeros_like(done[0]))
        before = x[t] + _pick(cut, 0.0, before)
        sums[t] = before
    return (sums,)


def linear_recurrence(weights, inputs, *, initial=None, reverse=False, minus=-1.0):
    x = _float(inputs)
    w = _full(weights, x.shape)
    state = np.zeros(x.shape[1:]) if initial is None else np.broadcast_to(_float(initial), x.shape[1:])
    states = np.zeros_like(x)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        state = x[t] + _pick(w[t] == 0, 0.0, w[t] * state)
        states[t] = state
    return (states,)


def _ends(valid, ids, terminated, truncated, given):
    """For each valid step of a row the end found at it, or before the next valid one: (kind, step) or None."""
    found, pending = {}, None
    for t in reversed(range(len(valid))):
        changed = t + 1 < len(ids) and ids[t] != ids[t + 1]
        if terminated[t] or truncated[t] or changed:
            cut_short = truncated[t] and not terminated[t]
            changed_only = changed and not terminated[t] and not truncated[t]
            pending = ("truncated" if cut_short or (changed_only and given) else "terminated", t)
        if valid[t]:
            if pending and given and pending[1] != t:
                pending = ("truncated", pending[1])
            found[t], pending = pending, None
    return found


def _of_row(x, shape, b, kept):
    """An argument as the row b has it: per step at the steps that are kept, else as it is over the batch."""
    if isinstance(x, str) or not np.ndim(x):
        return x
    if np.ndim(x) > len(shape):
        return np.asarray(x)[:, *b][kept]
    if np.ndim(x) == len(shape):
        return np.broadcast_to(x, shape)[:, *b][kept]
    return np.broadcast_to(x, shape[1:])[b]


def with_steps_deleted(function, data, *, valid=None, segment_ids=None, terminated=None, truncated=None, **kwargs):
    """A backward `function` on each row without its invalid steps; 0 where these are."""
    main = np.asarray(kwargs[data])
    shape, steps = main.shape, main.shape[0]
    valid = np.ones(shape, bool) if valid is None else np.asarray(valid) != 0
    ids = np.zeros(shape) if segment_ids is None else np.asarray(segment_ids)
    flags = _flags(terminated, shape), _flags(truncated, shape)
    given = any(kwargs.get(name) is not None for name in ("next_values", "next_state_values", "next_q_values"))
    final = kwargs.pop("final_values", None)
    if np.shape(kwargs.get("values"))[:1] == (steps + 1,):
        kwargs["bootstrap_value"], kwargs["values"] = kwargs["values"][-1], kwargs["values"][:-1]
    results = None
    for b in np.ndindex(*shape[1:]):
        found = _ends(valid[:, *b], ids[:, *b], *(f[:, *b] for f in flags), given)
        kept = sorted(found)
        named = {name: _of_row(x, shape, b, kept) for name, x in kwargs.items()}
        ends = [found[t] for t in kept]
        named["terminated"] = np.array([e is not None and e[0] == "terminated" for e in ends], bool)
        named["truncated"] = np.array([e is not None and e[0] == "truncated" for e in ends], bool)
        if final is not None:
            named["final_values"] = np.array([final[e[1]][b] if e else 0.0 for e in ends])
        outs = function(**named) if kept else ()
        results = results or tuple(np.zeros(shape) for _ in range(2 if function in (gae, vtrace, retrace) else 1))
        for result, out in zip(results, outs, strict=bool(kept)):
            result[kept, *b] = out
    return results or (np.zeros(shape),)


def forward_with_steps_deleted(
    function, data, *, valid=None, segment_ids=None, done=None, boundary="ends_at", initial=None, **kwargs
):
    """A forward `function` on each row without its invalid steps; 0 where these are."""
    main = np.asarray(kwargs[data])
    shape = main.shape
    valid = np.ones(shape, bool) if valid is None else np.asarray(valid) != 0
    ids = np.zeros(shape) if segment_ids is None else np.asarray(segment_ids)
    done = _flags(done, shape)
    result = np.zeros(shape)
    for b in np.ndindex(*shape[1:]):
        kept, starts, cut = [], [], False
        for t in range(shape[0]):
            cut |= (boundary == "starts_at" and done[t][b]) or (t > 0 and ids[t][b] != ids[t - 1][b])
            if valid[t][b]:
                kept.append(t)
                starts.append(cut)
                cut = False
            cut |= boundary == "ends_at" and done[t][b]
        if not kept:
            continue
        named = {name: _of_row(x, shape, b, kept) for name, x in kwargs.items()}
        if initial is not None and not starts[0]:
            named["initial"] = np.asarray(initial)[b]
        result[kept, *b] = function(**named, done=np.array([*starts[1:], False]))[0]
    return (result,)
