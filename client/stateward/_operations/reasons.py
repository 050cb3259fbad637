"""Which exception each reason of the contract becomes: the one of the same name, such as LeaseHeld for LEASE_HELD."""

from __future__ import annotations

from collections.abc import Mapping

from stateward import errors
from stateward.v1.error_reason_pb2 import ErrorReason

_REASONS = [name.removeprefix("ERROR_REASON_") for name, number in ErrorReason.items() if number]
BY_REASON: Mapping[str, type[errors.StatewardError]] = {
    reason: getattr(errors, reason.title().replace("_", "")) for reason in _REASONS
}
