"""What a CUDA device would be given, read off the lowered text on a machine without one."""

import re
import sys
import types

import jax
import jax.numpy as jnp
import pytest

import rltriton_jax as rtj
from rltriton_jax.scan.triton import launch

X = jax.ShapeDtypeStruct((256, 512), jnp.float32)
ROW = jax.ShapeDtypeStruct((512,), jnp.float32)


needs_kernel = pytest.mark.skipif(
    launch.why_unavailable() is not None, reason=f"lowering for CUDA: {launch.why_unavailable()}"
)


@pytest.fixture
def lowered():
    with rtj.lowering_for("sm_90"):
        yield lambda f, *args: jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def calls(text):
    return len(re.findall(r"@triton_kernel_call", text))


def moves(text):
    """Transposes and gathers of anything as large as a rollout."""
    found = re.findall(r"stablehlo\.(?:transpose|gather|dynamic_gather).*?tensor<([\dx]+)x[a-z]", text)
    return [f for f in found if eval(f.replace("x", "*")) >= 256 * 512]


def advantages(r, v, d):
    return rtj.gae(r, v, d, bootstrap_value=0.0).advantages


FUNCTIONS = {
    "jit": (advantages, 1),
    "both outputs": (lambda r, v, d: rtj.gae(r, v, d, bootstrap_value=0.0), 1),
    "batch-major": (lambda r, v, d: rtj.gae(r, v, d, time_axis=1, bootstrap_value=0.0), 1),
    "vmap over columns": (jax.vmap(advantages, 1, 1), 1),
    "vmap over rows": (jax.vmap(advantages, 0, 0), 1),
    "gradient": (jax.grad(lambda r, v, d: jnp.sum(advantages(r, v, d) ** 2), (0, 1)), 2),
    "gradient of the values alone": (jax.grad(lambda r, v, d: jnp.sum(advantages(r, v, d)), 1), 1),
    "retrace": (lambda r, v, d: rtj.retrace(r, v, v, d, next_state_values=v), 1),
    "traces": (lambda r, v, d: rtj.eligibility_traces(r, d), 1),
    "sweep": (
        lambda r, v, d: jax.vmap(lambda g: rtj.gae(r, v, d, gamma=g, bootstrap_value=0.0).advantages)(
            jnp.linspace(0.9, 0.99, 32)
        ),
        1,
    ),
    "valid": (lambda r, v, d: rtj.gae(r, v, bootstrap_value=0.0, valid=d).advantages, 1),
    "forced to XLA": (lambda r, v, d: rtj.gae(r, v, d, implementation="associative_scan", bootstrap_value=0.0), 0),
}


@needs_kernel
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_is_as_many_kernels_as_it_needs_and_moves_nothing(name, lowered):
    function, expected = FUNCTIONS[name]
    text = lowered(function, X, X, X)
    assert calls(text) == expected and not moves(text)


@needs_kernel
@pytest.mark.parametrize("actions, inside", [(4, True), (launch.MAX_TERMS + 1, False)])
def test_a_sum_over_few_actions_is_taken_in_the_kernel(actions, inside, lowered):
    q = jax.ShapeDtypeStruct((*X.shape, actions), jnp.float32)
    retrace = lambda r, d, q: rtj.retrace(r, r, r, d, next_q_values=q, next_target_probs=q)
    for function in (retrace, jax.vmap(retrace, 1, 1)):
        text = lowered(function, X, X, q)
        assert calls(text) == 1 and ("stablehlo.reduce" not in text) == inside and not moves(text)


@needs_kernel
def test_an_output_that_is_not_used_is_not_stored(lowered):
    one, two = lowered(advantages, X, X, X), lowered(lambda r, v, d: rtj.gae(r, v, d, bootstrap_value=0.0), X, X, X)
    results = [re.search(r"triton_kernel_call\w*\(.*->\s*(.*)", t).group(1).count("256x512xf32") for t in (one, two)]
    assert results == [1, 2]


def test_without_the_kernels_packages_a_gpu_warns_and_runs_xla(monkeypatch):
    monkeypatch.setattr(launch, "why_unavailable", lambda: "jax_triton is missing; pip install it")
    with pytest.warns(UserWarning, match="jax_triton is missing"):
        text = jax.jit(lambda *a: advantages(*a)).trace(X, X, X).lower(lowering_platforms=("cuda",)).as_text()
    assert calls(text) == 0


@needs_kernel
def test_without_jaxs_plugin_a_gpu_warns_and_runs_xla(monkeypatch):
    monkeypatch.setattr(launch, "why_unavailable", launch.why_unavailable.__wrapped__)
    monkeypatch.setitem(sys.modules, "jaxlib.gpu_triton", types.ModuleType("gpu_triton"))
    with pytest.warns(UserWarning, match=r"plugin for GPUs is not installed; .*pip install"):
        text = jax.jit(lambda *a: advantages(*a)).trace(X, X, X).lower(lowering_platforms=("cuda",)).as_text()
    assert calls(text) == 0


def test_without_triton_interpreting_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    interpreted = jax.jit(lambda r, v, d: rtj.gae(r, v, d, implementation="interpret", bootstrap_value=0.0).advantages)
    with pytest.raises(ValueError, match=r"'interpret' cannot run: import triton failed .*pip install"):
        interpreted.trace(X, X, X).lower(lowering_platforms=("cpu",))


def test_without_the_kernels_packages_forcing_triton_is_an_error(monkeypatch):
    monkeypatch.setattr(launch, "why_unavailable", lambda: "jax_triton is missing; pip install it")
    forced = jax.jit(lambda r, v, d: rtj.gae(r, v, d, implementation="triton", bootstrap_value=0.0).advantages)
    with pytest.raises(ValueError, match="cannot run: jax_triton is missing"):
        forced.trace(X, X, X).lower(lowering_platforms=("cuda",))


def text_for(platform, function=advantages):
    return jax.jit(function).trace(X, X, X).lower(lowering_platforms=(platform,)).as_text()


@needs_kernel
@pytest.mark.parametrize(("platform", "target"), [("cuda", "sm_90"), ("cuda", "sm_80"), ("rocm", "gfx942")])
def test_a_program_can_be_lowered_for_a_gpu_that_is_not_there(platform, target):
    with rtj.lowering_for(target):
        assert calls(text_for(platform)) == 1


@needs_kernel
def test_one_program_can_be_lowered_for_both_makes_of_gpus():
    with rtj.lowering_for("sm_90", "gfx942"):
        lowered = jax.jit(advantages).trace(X, X, X).lower(lowering_platforms=("cpu", "cuda", "rocm"))
    assert calls(lowered.as_text()) == 2


@needs_kernel
def test_the_target_is_part_of_a_traces_identity():
    """One jitted function, and one traced one, is lowered anew for each."""
    function = jax.jit(advantages)
    traced = function.trace(X, X, X)
    texts = []
    for target in ("sm_80", "sm_90", "sm_80"):
        with rtj.lowering_for(target):
            texts += [t.lower(lowering_platforms=("cuda",)).as_text() for t in (function.trace(X, X, X), traced)]
    assert texts[0] == texts[1] == texts[4] == texts[5] and texts[2] == texts[3] != texts[0]


@needs_kernel
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU to lower for")
@pytest.mark.parametrize(("platform", "target"), [("cuda", "sm_90"), ("rocm", "gfx942")])
def test_without_a_gpu_the_error_names_the_context(platform, target):
    message = rf"lowered for {platform}, but .* rtj\.lowering_for\('{target}'\)"
    with pytest.raises(ValueError, match=message):
        text_for(platform)
    other = "gfx942" if platform == "cuda" else "sm_90"
    with rtj.lowering_for(other), pytest.raises(ValueError, match=message):
        text_for(platform)


@pytest.mark.parametrize("target", ["h200", "sm90", "90", 90, "gfx"])
def test_a_target_that_is_none_is_refused(target):
    with pytest.raises(ValueError, match=r"target is .*'sm_90' or 'gfx942'"):
        rtj.lowering_for(target)


def test_a_target_means_nothing_to_a_cpu(rng):
    x = rng.normal(size=(4, 3)).astype("float32")
    with rtj.lowering_for("sm_90"):
        got = rtj.discounted_returns(x, implementation="scan")
    assert jnp.array_equal(got, rtj.discounted_returns(x, implementation="scan"))
