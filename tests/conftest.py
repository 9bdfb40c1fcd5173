import os

# Eight devices of this host, for the tests of sharding; set before JAX starts.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def rng(request):
    """Seeded by the test's name, so that a failure repeats."""
    import zlib

    import numpy as np

    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


def _asked_for(config, marker):
    return marker in (config.option.markexpr or "")


def _is_interpreted(item):
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return item.get_closest_marker("interpreter") or any(isinstance(p, str) and p == "interpret" for p in parameters)


def pytest_collection_modifyitems(config, items):
    from rltriton_jax.scan.triton.launch import why_no_triton

    no_interpreter = why_no_triton() or (jax.default_backend() != "cpu" and "the interpreter runs on CPU")
    for item in items:
        if no_interpreter and _is_interpreted(item):
            item.add_marker(pytest.mark.skip(reason=no_interpreter))
        if item.get_closest_marker("gpu") and jax.default_backend() != "gpu":
            item.add_marker(pytest.mark.skip(reason="needs a CUDA or ROCm device, and this machine has none"))
        if item.get_closest_marker("nightly") and not _asked_for(config, "nightly"):
            item.add_marker(pytest.mark.skip(reason="a long search, run by hand: -m nightly"))
