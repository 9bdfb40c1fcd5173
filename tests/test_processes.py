"""Two processes of this machine as one mesh, by jax.distributed."""

import socket
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import rltriton_jax as rtj

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize("localhost:{port}", num_processes=2, process_id=int(sys.argv[1]))
assert jax.device_count() == 4 and jax.local_device_count() == 2

mesh = jax.make_mesh((2, 2), ("time", "batch"))
rng = np.random.default_rng(0)
r, v = rng.normal(size=(2, 8, 8)).astype("float32")
done = rng.random((8, 8)) < 0.3
spec = NamedSharding(mesh, P({spec}))
place = lambda x: jax.make_array_from_callback(x.shape, spec, lambda index: x[index])
got = jax.jit(lambda r, v, d: rtj.gae(r, v, d, bootstrap_value=0.0).advantages)(place(r), place(v), place(done))
with jax.default_device(jax.local_devices()[0]):
    want = np.asarray(rtj.gae(r, v, done, bootstrap_value=0.0).advantages)
assert got.sharding == spec
for shard in got.addressable_shards:
    np.testing.assert_allclose(shard.data, want[shard.index], rtol=1e-5, atol=1e-6)
print("agrees")
"""


@pytest.mark.parametrize("spec", ['None, ("time", "batch")', '"time", "batch"'], ids=["batch", "time and batch"])
def test_two_processes_compute_one_sharded_estimator(spec):
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    program = PROGRAM.format(port=port, spec=spec)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(i)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0 and "agrees" in out, err[-3000:]
