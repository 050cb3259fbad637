"""Makes diagnoses."""

from __future__ import annotations

from stateward.v1.admin_service_pb2 import Diagnosis


def fine(check: str, summary: str, **facts: object) -> Diagnosis:
    """All is as it should be."""
    return _make(check, Diagnosis.VERDICT_OK, summary, "", facts)


def warning(check: str, summary: str, advice: str, **facts: object) -> Diagnosis:
    """It works, but somebody should look at it."""
    return _make(check, Diagnosis.VERDICT_WARNING, summary, advice, facts)


def failed(check: str, summary: str, advice: str, **facts: object) -> Diagnosis:
    """It does not work, or puts data at risk."""
    return _make(check, Diagnosis.VERDICT_FAILED, summary, advice, facts)


def skipped(check: str, summary: str) -> Diagnosis:
    """It could not be examined."""
    return _make(check, Diagnosis.VERDICT_SKIPPED, summary, "", {})


def _make(check: str, verdict: Diagnosis.Verdict, summary: str, advice: str, facts: dict[str, object]) -> Diagnosis:
    texts = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in facts.items()}
    return Diagnosis(check=check, verdict=verdict, summary=summary, advice=advice, facts=texts)
