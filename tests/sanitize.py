"""A few small launches of every kind, to run under compute-sanitizer's memcheck and racecheck."""

import jax
import numpy as np

import rltriton_jax as rtj


def main():
    rng = np.random.default_rng(0)
    for shape, axis in (((33, 5), 0), ((5, 33), 1), ((700, 3), 0), ((2, 9000), 1), ((300, 8200), 0), ((2, 40, 3), 1)):
        r, v, log_rhos = rng.normal(size=(3, *shape)).astype("float32")
        q = rng.normal(size=(*shape, 4)).astype("float32")
        done = rng.random(shape) < 0.1
        for result in (
            rtj.gae(r, v, done, time_axis=axis, implementation="triton", bootstrap_value=0.0),
            rtj.retrace(r, v, log_rhos, done, next_state_values=v, time_axis=axis, implementation="triton"),
            rtj.retrace(
                r, v, log_rhos, done, next_q_values=q, next_target_probs=q, time_axis=axis, implementation="triton"
            ),
            rtj.eligibility_traces(r, done, time_axis=axis, implementation="triton"),
            rtj.vtrace(
                r,
                v,
                log_rhos,
                done,
                valid=r < 0.5,
                segment_ids=(v > 1).astype("int32"),
                bootstrap_value=0.0,
                time_axis=axis,
                implementation="triton",
            ),
        ):
            jax.block_until_ready(result)
    print("launched all")


if __name__ == "__main__":
    main()
