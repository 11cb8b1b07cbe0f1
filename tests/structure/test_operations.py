"""Every public function has a record in ``tests/operations.py``, and the record has all that the tests ask of it."""

import inspect
import sys
from pathlib import Path

import pytest

from tests.operations import ELSEWHERE, LIBRARIES, ONLY_NUMPY, OPERATIONS

TESTS = Path(__file__).parents[1]
SHARED = sorted(set(OPERATIONS) - ONLY_NUMPY)


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_public_function_has_a_record(library):
    module, _ = LIBRARIES[library]
    functions = {name for name in module.__all__ if inspect.isfunction(getattr(module, name))}
    missing = functions - set(OPERATIONS) - set(ELSEWHERE)
    assert not missing, f"add a record of calls, expected results and mistakes to tests/operations.py: {missing}"


@pytest.mark.parametrize("name", SHARED)
def test_a_function_is_in_the_three_libraries(name):
    lacking = [library for library, (module, _) in LIBRARIES.items() if name not in module.__all__]
    assert not lacking, (
        f"{name} is not in {lacking}: add it there, or to ONLY_NUMPY or ELSEWHERE of tests/operations.py"
    )


@pytest.mark.parametrize("name", SHARED)
def test_a_mistake_is_made_in_every_argument_that_a_call_needs(name):
    operation = OPERATIONS[name]
    parameters = inspect.signature(getattr(LIBRARIES["numpy"][0], name)).parameters.values()
    needed = {p.name for p in parameters if p.default is inspect.Parameter.empty}
    missing = needed - {mistake.argument for mistake in (*operation.values, *operation.types)}
    assert not missing, f"add mistakes in {missing} to the record of {name}"
    assert needed <= set(operation.base)


@pytest.mark.parametrize("name", [name for name in SHARED if "u" in OPERATIONS[name].base])
def test_functions_of_reflections_are_called_with_complex_ones(name):
    assert any(call["u"].dtype.kind == "c" for call in OPERATIONS[name].calls), f"add a complex call to {name}'s record"


def test_kinds_of_the_tester_exist(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(TESTS / "tester"), *sys.path])
    from kinds import KINDS

    assert {kind for operation in OPERATIONS.values() for kind in operation.kinds} <= set(KINDS)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_functions_without_a_record_are_tested_elsewhere(name):
    assert name in (TESTS / ELSEWHERE[name]).read_text("utf-8")
