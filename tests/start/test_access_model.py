"""The danger: for some grants, names and requests that nobody thought of, the daemon does what no grant allows, refuses
what one does, or shows what may not be read.

A short form of tests/soak/access.py, which draws for an hour in `make soak`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.soak.access import is_denied, may, run_round
from tests.start.contract import METHODS, request_of

EXAMPLES = 250


@pytest.mark.parametrize("seed", [1, 2])
def test_random_grants_and_calls_against_a_model(tmp_path: Path, seed: int) -> None:
    """Also lists, counts, headers and files: each as the model says, and no value of a hidden thread in any answer."""
    done = run_round(tmp_path, seed, EXAMPLES)
    assert done["PERMISSION_DENIED"] > EXAMPLES / 5
    assert done["done"] + done["THREAD_NOT_FOUND"] > EXAMPLES / 50


def test_the_model_itself() -> None:
    """It is so small that some cases say all of it."""
    grants = [({"read"}, "team", "a-*"), ({"write"}, "*", "b?")]
    assert may(grants, "read", "team", "a-1")
    assert may(grants, "write", "shop", "b?")
    assert not may(grants, "write", "shop", "b1")
    assert not may(grants, "write", "team", "a-1")
    assert not may(grants, "read", "team", "a-" + "1" * 5000)
    assert not is_denied(grants, METHODS["Hydrate"], request_of(METHODS["Hydrate"], "a-1"))
    assert is_denied(grants, METHODS["Save"], request_of(METHODS["Save"], "a-1"))
    assert is_denied(grants, METHODS["GetStats"], request_of(METHODS["GetStats"], ""))
    assert not is_denied(grants, METHODS["ListThreads"], request_of(METHODS["ListThreads"], ""))
