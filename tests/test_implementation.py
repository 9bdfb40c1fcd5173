"""Which implementation runs, and what importing costs."""

import re
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import primitives

import rltriton_jax as rtj
from rltriton_jax import doctor
from rltriton_jax.scan import lowering
from rltriton_jax.scan.derivatives import cotangents_p
from rltriton_jax.scan.primitive import affine_scan_p
from rltriton_jax.scan.triton import launch
from rltriton_jax.versions import numbers, versions

needs_kernel = pytest.mark.skipif(
    launch.why_unavailable() is not None, reason=f"the kernel's packages: {launch.why_unavailable()}"
)

X = np.ones((4, 3), np.float32)


def chosen(function=lambda x: rtj.gae(x, x, bootstrap_value=0.0).advantages):
    (scan,) = [e for e in primitives(jax.make_jaxpr(function)(X).jaxpr) if e.primitive is affine_scan_p]
    return scan.params["implementation"]


def test_the_default_is_left_to_the_platform():
    assert chosen() is None


def test_a_default_holds_for_its_block_and_is_put_back():
    with rtj.default_implementation("scan"):
        assert chosen() == "scan"
        with rtj.default_implementation("associative_scan"):
            assert chosen() == "associative_scan"
        assert chosen() == "scan"
        assert (
            chosen(lambda x: rtj.gae(x, x, implementation="associative_scan", bootstrap_value=0.0).advantages)
            == "associative_scan"
        )
    assert chosen() is None


@pytest.fixture
def process_default():
    yield rtj.set_default_implementation
    rtj.set_default_implementation(None)


def in_a_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_a_default_may_be_set_for_the_process(process_default):
    process_default("scan")
    assert chosen() == "scan" and in_a_thread(chosen) == "scan"
    with rtj.default_implementation(None):
        assert chosen() is None and in_a_thread(chosen) == "scan"
    process_default(None)
    assert chosen() is None


def test_a_block_is_its_threads_own():
    """Two overlapping blocks: each thread sees its own, and nothing stays set when the first to enter ends last."""
    entered, left = Event(), Event()

    def other():
        with rtj.default_implementation("associative_scan"):
            entered.set()
            assert left.wait(60)
            return chosen()

    with ThreadPoolExecutor(1) as pool:
        with rtj.default_implementation("scan"):
            result = pool.submit(other)
            assert entered.wait(60) and chosen() == "scan"
        assert chosen() is None
        left.set()
        assert result.result() == "associative_scan" and pool.submit(chosen).result() is None


def test_calling_the_context_without_entering_it_changes_nothing():
    rtj.default_implementation("scan")
    assert chosen() is None


def test_a_default_that_is_unknown_is_refused_and_changes_nothing():
    for setter in (rtj.default_implementation, rtj.set_default_implementation):
        with pytest.raises(ValueError, match="implementation is 'gpu'"):
            setter("gpu")
    assert chosen() is None


def test_a_cached_jit_does_not_ignore_the_default():
    traced = []

    @jax.jit
    def f(x):
        traced.append(1)
        return rtj.gae(x, x, bootstrap_value=0.0).advantages

    def loops():
        return "while" in f.lower(X).as_text()

    assert loops()
    with rtj.default_implementation("associative_scan"):
        assert not loops()
    assert loops()


def test_derivatives_inherit_the_implementation():
    f = jax.grad(lambda x: jnp.sum(rtj.gae(x, x, implementation="scan", bootstrap_value=0.0).advantages ** 2))
    scans = [e for e in primitives(jax.make_jaxpr(f)(X).jaxpr) if e.primitive in (affine_scan_p, cotangents_p)]
    assert len(scans) >= 2 and {e.params["implementation"] for e in scans} == {"scan"}


def test_the_two_plain_implementations_are_what_they_say():
    text = lambda name: (
        jax.jit(lambda x: rtj.gae(x, x, implementation=name, bootstrap_value=0.0).advantages).lower(X).as_text()
    )
    assert "while" in text("scan") and "while" not in text("associative_scan")


def test_a_second_eager_call_compiles_nothing():
    rtj.gae(X, X, gamma=0.9, bootstrap_value=0.0)
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        compiled = []
        patch.setattr(jax._src.dispatch.logger, "log", lambda *a, **k: compiled.append(a))
        rtj.gae(X, X, gamma=0.91, bootstrap_value=0.0)
    assert not compiled


def test_a_new_hyperparameter_does_not_trace_again():
    traced = []

    @jax.jit
    def f(estimator, x):
        traced.append(1)
        return estimator(x, x, bootstrap_value=0.0).advantages

    a, b = f(rtj.GAE(0.9, 0.8), X), f(rtj.GAE(0.8, 0.9), X)
    assert len(traced) == 1 and not np.allclose(a, b)


def test_dead_outputs_are_dropped():
    f = jax.jit(lambda x: rtj.gae(x, x, bootstrap_value=0.0).targets)
    kept = []
    from jax.interpreters import partial_eval

    jaxpr, _ = partial_eval.dce_jaxpr(jax.make_jaxpr(f)(X).jaxpr, [True])
    kept = [e.params["wanted"] for e in primitives(jaxpr) if e.primitive is affine_scan_p]
    assert kept == [(1,)]


def test_private_jax_is_in_one_module():
    package = Path(rtj.__file__).parent
    private = re.compile(
        r"jax\._src|jax\.interpreters|jax\.extend|custom_partitioning import|manual_axis_type|module_context"
    )
    found = {f.relative_to(package).as_posix() for f in package.rglob("*.py") if private.search(f.read_text())}
    assert found == {"scan/jax_internals.py"}


@pytest.fixture
def looked_up_again(monkeypatch):
    """Whether the kernel can run, as if nobody had asked."""
    monkeypatch.setattr(launch, "why_unavailable", launch.why_unavailable.__wrapped__)
    lowering.warn_once.cache_clear()


def of_triton():
    return [name for name in sys.modules if name.split(".")[0] == "triton"]


@pytest.fixture
def install(monkeypatch, tmp_path, looked_up_again):
    """Puts a package `triton` of this source, or a folder without one, in the place of the one that is installed."""
    for name in of_triton():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(p for p in sys.path if "site-packages" not in p)])

    def install(source):
        (tmp_path / "triton").mkdir()
        if source is not None:
            (tmp_path / "triton" / "__init__.py").write_text(source)

    yield install
    for name in of_triton():
        del sys.modules[name]


UNUSABLE = {
    "a folder alone": (None, "import triton.language failed"),
    "no language": ("__version__ = '3.6.0'", "import triton.language failed"),
    "its library is missing": (
        "raise OSError('libtriton.so: cannot open')",
        r"import triton failed \(OSError: libtriton",
    ),
    "it raises something else": ("raise RuntimeError('no driver')", r"import triton failed \(RuntimeError: no driver"),
}


def check_unusable(reason):
    """The doctor says it; None warns of it once; a forced implementation is an error that says it."""
    assert any(re.search(reason, note) for note in doctor._notes())
    lowered = lambda name, platform, function=lambda f: f: (
        jax.jit(function(lambda x: jnp.sum(rtj.discounted_returns(x, gamma=0.9, implementation=name) ** 2)))
        .trace(X)
        .lower(lowering_platforms=(platform,))
    )
    with pytest.warns(UserWarning, match=reason) as warned, warnings.catch_warnings():
        warnings.simplefilter("always")
        assert "triton" not in lowered(None, "cuda", jax.grad).as_text()
    assert len(warned) == 1
    for name, platform in (("triton", "cuda"), ("interpret", "cpu")):
        with pytest.raises(ValueError, match=f"implementation='{name}' cannot run: {reason}"):
            lowered(name, platform)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="the doctor's notes are of a machine without a GPU")
@pytest.mark.parametrize("name", UNUSABLE)
def test_a_triton_that_is_only_half_there_is_named_with_the_reason(name, install):
    source, reason = UNUSABLE[name]
    install(source)
    check_unusable(reason)


@needs_kernel
def test_a_triton_that_interprets_everything_is_named(looked_up_again, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    check_unusable("TRITON_INTERPRET is set, .*unset it")


@needs_kernel
@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("3.7rc1", None),
        ("3.9.0+git123", None),
        ("3.5.1", "triton 3.5.1 is older than the 3.[67] that"),
        ("main", "triton says 'main' is its version, which is none"),
        ("", "triton says '' is its version, which is none"),
    ],
)
def test_a_version_of_triton_is_read_or_named(version, reason, monkeypatch):
    import triton

    monkeypatch.setattr(triton, "__version__", version)
    found = launch.why_unavailable.__wrapped__()
    assert found is None if reason is None else re.match(reason, found)


def test_versions_are_read_as_far_as_they_are_numbers():
    texts = ("3.7rc1", "3.6.0+git123", "v3.7.dev1", "3.10", "git123", "")
    assert [numbers(t) for t in texts] == [(3, 7), (3, 6), (3, 7), (3, 10), (), ()]


def test_what_an_installation_left_behind_has_no_version(monkeypatch, tmp_path):
    (tmp_path / "triton-3.6.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert versions("triton", "no-such-package") == {}


@needs_kernel
@pytest.mark.parametrize("dtype", ["int4", "uint2", "float8_e5m2", "float8_e4m3b11fnuz"])
def test_what_the_kernels_compiler_does_not_know_is_cast_before_it(dtype):
    flags = jax.ShapeDtypeStruct(X.shape, dtype)
    with rtj.lowering_for("sm_90"):
        text = jax.jit(rtj.discounted_returns).trace(X, flags).lower(lowering_platforms=("cuda",)).as_text()
    assert "triton_kernel_call" in text


@needs_kernel
@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "float32", "bfloat16", "float16"])
def test_other_flags_reach_the_kernel_as_they_lie(dtype):
    flags = jax.ShapeDtypeStruct(X.shape, dtype)
    with rtj.lowering_for("sm_90"):
        text = jax.jit(rtj.discounted_returns).trace(X, flags).lower(lowering_platforms=("cuda",)).as_text()
    assert "triton_kernel_call" in text and "4x3" not in "".join(re.findall("stablehlo.convert.*", text))


def test_importing_needs_neither_triton_nor_jax_triton_and_brings_no_other_package():
    """As on a machine that lacks both: their import fails. What is imported beside JAX is what makes an import slow."""
    program = """
        import sys
        sys.modules["triton"] = sys.modules["jax_triton"] = None
        import jax, jax.numpy, jax.extend.core, jax.interpreters.mlir, jax.experimental.checkify
        before = {name.split(".")[0] for name in sys.modules}
        import rltriton_jax
        print({name.split(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names))
        assert float(rltriton_jax.discounted_returns(jax.numpy.ones(2), gamma=0.5)[0]) == 1.5
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{'rltriton_jax'}"
