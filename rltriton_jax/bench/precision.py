"""x"""

import math

import numpy as np


def scan(w, u, *, reverse: bool):
    """x[t] = u[t] + w[t] * x[t-1], or x[t+1] in reverse, in float64.

    In blocks of as many steps as there are blocks, so that Python loops over thousands of steps and not over a million.
    """
    w, u = np.broadcast_arrays(np.asarray(w, np.float64), np.asarray(u, np.float64))
    if reverse:
        return scan(w[::-1], u[::-1], reverse=False)[::-1]
    steps = len(u)
    length = max(1, math.isqrt(steps))
    filling = [(0, -steps % length)] + [(0, 0)] * (u.ndim - 1)
    w, x = (np.pad(a, filling).reshape(-1, length, *u.shape[1:]) for a in (w, u))
    for i in range(1, length):
        x[:, i] += w[:, i] * x[:, i - 1]
        w[:, i] *= w[:, i - 1]
    for i in range(1, len(x)):
        x[i] += w[i] * x[i - 1, -1]
    return x.reshape(-1, *u.shape[1:])[:steps]
