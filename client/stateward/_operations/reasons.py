"""Which exception each reason of the contract becomes. A test checks that none is missing."""

from __future__ import annotations

from collections.abc import Mapping

from stateward import errors

BY_REASON: Mapping[str, type[errors.StatewardError]] = {
    "VERSION_MISMATCH": errors.VersionMismatch,
    "WRITER_ABORTED": errors.WriterAborted,
    "THREAD_NOT_FOUND": errors.ThreadNotFound,
    "VERSION_NOT_FOUND": errors.VersionNotFound,
    "VERSION_PRUNED": errors.VersionPruned,
    "INVALID_FIELD": errors.InvalidField,
    "REQUEST_ID_REUSED": errors.RequestIdReused,
    "CHECKPOINT_ID_REUSED": errors.CheckpointIdReused,
    "EDIT_CONFLICT": errors.EditConflict,
    "SCHEMA_MISMATCH": errors.SchemaMismatch,
    "LEASE_HELD": errors.LeaseHeld,
    "NOT_OWNER": errors.NotOwner,
    "FENCED": errors.Fenced,
    "KEY_UNAVAILABLE": errors.KeyUnavailable,
    "NO_ARCHIVE": errors.NoArchive,
    "STALE_ANSWER": errors.StaleAnswer,
    "STATE_TOO_LARGE": errors.StateTooLarge,
    "QUOTA_EXCEEDED": errors.QuotaExceeded,
    "DISK_FULL": errors.DiskFull,
    "QUEUE_FULL": errors.QueueFull,
    "CORRUPT": errors.Corrupt,
    "ARCHIVE_UNAVAILABLE": errors.ArchiveUnavailable,
    "SHUTTING_DOWN": errors.ShuttingDown,
    "UNAUTHENTICATED": errors.Unauthenticated,
    "PERMISSION_DENIED": errors.PermissionDenied,
    "INTERNAL": errors.Internal,
    "DEADLINE_EXCEEDED": errors.DeadlineExceeded,
    "OUTCOME_UNKNOWN": errors.OutcomeUnknown,
    "FEATURE_UNAVAILABLE": errors.FeatureUnavailable,
    "THREAD_EXISTS": errors.ThreadExists,
    "CLAIM_LOST": errors.ClaimLost,
}
