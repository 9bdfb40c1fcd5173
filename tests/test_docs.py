"""Every public function says what the conventions ask for."""

import inspect

import pytest

import rltriton_jax as rtj
from rltriton_jax import compat

SETTINGS = ("default_implementation", "set_default_implementation", "lowering_for")
FUNCTIONS = {
    **{n: getattr(rtj, n) for n in rtj.__all__ if inspect.isfunction(getattr(rtj, n)) and n not in SETTINGS},
    **{
        f"rlax.{n}": f
        for n, f in vars(compat.rlax).items()
        if inspect.isfunction(f) and f.__module__ == compat.rlax.__name__
    },
    "brax.compute_gae": compat.brax.compute_gae,
    "tunix.compute_gae_advantages": compat.tunix.compute_gae_advantages,
}
PUBLIC = {name: f for name, f in FUNCTIONS.items() if "._" not in name}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_gives_shapes_gradients_errors_and_the_paper(name):
    text = inspect.getdoc(PUBLIC[name])
    for part in ("Args:", "Returns:", "Gradients:", "Raises:", "References:"):
        assert part in text, f"{name} lacks {part}"
    assert any(shape in text for shape in ("[T", "[K", "[B, T")), f"{name} gives no shapes"
    for parameter in inspect.signature(PUBLIC[name]).parameters:
        assert parameter in text, f"{name} does not explain {parameter}"


@pytest.mark.parametrize("name", [n for n in PUBLIC if "truncated" in inspect.signature(PUBLIC[n]).parameters])
def test_what_speaks_of_truncation_names_both_autoreset_modes_of_gymnasium(name):
    text = " ".join(inspect.getdoc(PUBLIC[name]).split())
    assert "SAME_STEP" in text and "NEXT_STEP" in text and "first step of an episode" in text


def test_everything_public_is_documented():
    assert len(PUBLIC) >= 8 + 12 + 2
    for name in rtj.__all__:
        assert inspect.getdoc(getattr(rtj, name)), name
