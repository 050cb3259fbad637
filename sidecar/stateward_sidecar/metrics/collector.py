"""Turns what the parts measure into Prometheus' metric families, at the moment of a scrape.

Every label comes from a short list: methods, codes, reasons, kinds. Threads, namespaces and agents are never labels, so
the number of series does not grow with use.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stateward.v1.admin_service_pb2 import ArchiveStats
from stateward_sidecar.clock import Clock
from stateward_sidecar.measures import CallMeasures, Histogram, StoreMeasures, WriterMeasures, events
from stateward_sidecar.metrics.sources import LatestCensus, OldestReader, Sources
from stateward_sidecar.service.admission.limits import LIMITS
from stateward_sidecar.service.calls.status import CODES
from stateward_sidecar.service.methods import METHODS
from stateward_sidecar.telemetry import failures

Labels = tuple[str, ...]


class DaemonCollector(Collector):
    """Reads the sources. Used on the thread of the listener."""

    def __init__(self, sources: Sources, census: LatestCensus) -> None:
        self._sources = sources
        self._census = census
        self._reader = OldestReader(sources.store.context.engine)

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering reads nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yields all families."""
        yield from self._daemon()
        yield from calls(self._sources.measures.calls)
        yield from writer(self._sources.measures.writer, self._sources.measures.store)
        yield from self._queues()
        yield from self._store()
        yield from cache(self._sources.measures.store)
        yield from self._space()
        yield from self._counted()
        if self._sources.archive is not None:
            yield from archive(self._sources.archive.stats())
            yield from self._bucket()

    def _daemon(self) -> Iterator[Metric]:
        sources = self._sources
        build = GaugeMetricFamily("stateward_build_info", "Version of the daemon.", labels=("version", "format"))
        build.add_metric((sources.version, str(sources.format)), 1)
        yield build
        causes = sources.not_ready()
        yield gauge("stateward_ready", "1 if the daemon reports that it is ready.", not any(causes.values()))
        unready = GaugeMetricFamily("stateward_not_ready", "1 for each cause that holds now.", labels=("cause",))
        for cause, holds in causes.items():
            unready.add_metric((cause,), float(holds))
        yield unready
        yield counter("stateward_background_failures", "Unexpected failures of background tasks.", failures.count)
        yield counter(
            "stateward_decrypt_failures", "Stored bytes that did not pass authentication when read.", events.unopened
        )
        refusals = CounterMetricFamily(
            "stateward_refusals", "Calls and frames refused, by the contract's reason.", labels=("reason",)
        )
        for reason in CODES:  # also those at 0: an increase from nothing is none to Prometheus
            refusals.add_metric((reason,), events.refusals[reason])
        yield refusals
        limits = CounterMetricFamily(
            "stateward_limit_refusals", "Calls that a limit of their principal or namespace refused.", labels=("limit",)
        )
        for limit in LIMITS:
            limits.add_metric((limit,), events.limits[limit])
        yield limits
        denied = CounterMetricFamily(
            "stateward_denied_calls", "Calls whose caller is unknown, or may not make them.", labels=("method",)
        )
        for method in METHODS:
            denied.add_metric((method,), events.denied[method])
        yield denied
        yield counter("stateward_audit_lost", "Security events that the audit log lacks.", events.audit_lost)
        yield gauge("stateward_audit_failing", "1 if the audit log cannot be written.", events.audit_failing)
        # A family of its own, which begins at 0: a conflict is nothing that an alert should need another series for.
        yield counter(
            "stateward_conflicts",
            "Saves refused because the head was another one.",
            events.refusals["VERSION_MISMATCH"],
        )
        yield counter("stateward_replays", "Requests answered with the answer of an earlier try.", events.replays)

    def _queues(self) -> Iterator[Metric]:
        sources = self._sources
        yield gauge("stateward_open_calls", "Calls that are being served, with streams.", sources.open_calls())
        yield from self._wires()
        lines = GaugeMetricFamily("stateward_waiting_calls", "Calls that wait for their turn.", labels=("line",))
        for line, count in zip(("read", "write"), sources.waiting_calls(), strict=True):
            lines.add_metric((line,), count)
        yield lines
        yield gauge("stateward_queued_writes", "Writes in the writer's queue.", sources.store.context.writer.queued)
        yield gauge("stateward_watches", "Open watches.", sources.watches())

    def _wires(self) -> Iterator[Metric]:
        wires = self._sources.wires()
        calls = CounterMetricFamily("stateward_calls", "Calls and streams begun.", labels=("wire",))
        calls.add_metric(("grpc",), wires.grpc_calls)
        calls.add_metric(("frames",), wires.frames_calls)
        yield calls
        connections = GaugeMetricFamily("stateward_connections", "Open connections.", labels=("wire",))
        connections.add_metric(("frames",), wires.frames_connections)
        yield connections

    def _store(self) -> Iterator[Metric]:
        context = self._sources.store.context
        count = context.counters
        yield counter("stateward_saves", "Versions saved.", count.saves)
        yield counter("stateward_entries", "Journal entries written.", count.entries)
        yield counter("stateward_entry_bytes", "Bytes of these entries, compressed and sealed.", count.entry_bytes)
        yield counter("stateward_entry_plain_bytes", "Bytes of these entries as sent.", count.entry_plain_bytes)
        yield counter("stateward_snapshots", "Snapshots written.", count.snapshots)
        yield counter(
            "stateward_snapshot_bytes", "Bytes of these snapshots, compressed and sealed.", count.snapshot_bytes
        )
        yield counter(
            "stateward_snapshot_plain_bytes", "Bytes of the states of these snapshots.", count.snapshot_plain_bytes
        )
        yield gauge("stateward_cache_bytes", "Memory of hot states and dictionaries.", context.cache.used_bytes)
        yield gauge("stateward_cache_limit_bytes", "Largest size of the cache.", context.cache.limit_bytes)

    def _space(self) -> Iterator[Metric]:
        engine = self._sources.store.context.engine
        used_bytes, file_bytes = engine.sizes()
        yield gauge("stateward_data_used_bytes", "Bytes of the data file in use.", used_bytes)
        yield gauge("stateward_data_file_bytes", "Bytes of the data file.", file_bytes)
        yield gauge("stateward_data_map_bytes", "Largest size of the data file.", engine.map_bytes)
        yield gauge("stateward_room_bytes", "Bytes that saves may still take of map and disk.", engine.room_bytes())
        disk = os.statvfs(engine.directory)
        yield gauge("stateward_disk_free_bytes", "Free bytes of the disk.", disk.f_bavail * disk.f_frsize)
        yield gauge("stateward_disk_bytes", "Bytes of the disk.", disk.f_blocks * disk.f_frsize)
        fullest = self._sources.store.context.usage.fullest(1)
        share = fullest[0].used / fullest[0].maximum if fullest else 0.0
        yield gauge("stateward_fullest_namespace_ratio", "Used part of the fullest limit of a namespace.", share)
        blob_bytes = self._sources.store.context.blob_files.size_bytes()
        yield gauge("stateward_blob_bytes", "Bytes of the files of blobs.", blob_bytes)
        readers, behind, age_s = self._reader.look()
        yield gauge("stateward_readers", "Open read transactions, also those of other processes.", readers)
        yield gauge("stateward_oldest_reader_transactions", "Commits since the oldest read transaction began.", behind)
        yield gauge(
            "stateward_oldest_reader_seconds", "For how long scrapes have seen that reader behind, at least.", age_s
        )

    def _counted(self) -> Iterator[Metric]:
        counted = self._census.counted
        if counted is None:  # the first census has not ended
            return
        yield gauge("stateward_threads", "Threads on this disk.", counted.threads)
        yield gauge("stateward_unreadable_threads", "Threads that cannot be read.", counted.unreadable)
        yield gauge("stateward_open_questions", "Threads that wait for an answer.", counted.questions)
        oldest_s = time.time() - counted.oldest_question_us / 1e6 if counted.questions else 0.0
        yield gauge("stateward_oldest_question_seconds", "Age of the oldest open question.", max(oldest_s, 0.0))
        yield gauge("stateward_effects_in_progress", "Claims on effects that may be under way.", counted.in_progress)
        yield gauge("stateward_effects_uncertain", "Effects whose outcome nobody has told.", counted.uncertain)
        age_s = Clock().boottime() - self._census.taken_at
        yield gauge("stateward_census_age_seconds", "Age of the six counts above.", age_s)

    def _bucket(self) -> Iterator[Metric]:
        yield counter(
            "stateward_fencings", "Threads taken by another sidecar while they had unarchived entries.",
            events.fencings,
        )  # fmt: skip
        measures = self._sources.measures.bucket
        yield histogram(
            "stateward_bucket_request_duration_seconds", "Time of requests to the bucket, with their retries.",
            ("operation",), {(operation,): found for operation, found in list(measures.requests.items())},
        )  # fmt: skip
        errors = CounterMetricFamily(
            "stateward_bucket_errors", "Requests to the bucket that failed.", labels=("operation", "kind")
        )
        for labels, count in list(measures.errors.items()):
            errors.add_metric(labels, count)
        yield errors


def calls(measures: CallMeasures) -> Iterator[Metric]:
    """Yields the families of calls."""
    yield histogram(
        "stateward_call_duration_seconds", "Time of calls, from gRPC's hand-over to the answer.", ("method", "code"),
        dict(list(measures.durations.items())),
    )  # fmt: skip
    frames: dict[Labels, Histogram] = {
        ("saved" if is_saved else "refused",): found for is_saved, found in measures.frames.items()
    }
    yield histogram("stateward_frame_duration_seconds", "Time of frames in writers' streams.", ("outcome",), frames)


def writer(measures: WriterMeasures, store: StoreMeasures) -> Iterator[Metric]:
    """Yields the families of commits and syncs."""
    yield histogram(
        "stateward_commit_duration_seconds", "Time of commits: writes of pages and two syncs.", (),
        {(): measures.commits},
    )  # fmt: skip
    yield histogram("stateward_batch_writes", "Writes that shared a commit.", (), {(): measures.batches})
    yield histogram(
        "stateward_sync_duration_seconds", "Time of syncs outside of commits.", ("file",),
        {("keys",): measures.key_syncs, ("blob",): store.blob_syncs},
    )  # fmt: skip


def cache(measures: StoreMeasures) -> Iterator[Metric]:
    """Yields the families of reads."""
    looks = CounterMetricFamily("stateward_cache_looks", "Looks into the cache.", labels=("kind", "result"))
    for result, counts in (("hit", measures.hits), ("miss", measures.misses)):
        for kind, count in list(counts.items()):
            looks.add_metric((kind, result), count)
    yield looks
    yield histogram(
        "stateward_chain_entries", "Entries replayed to make a state that was not in memory.", (),
        {(): measures.chains},
    )  # fmt: skip


def archive(stats: ArchiveStats) -> Iterator[Metric]:
    """Yields the families of the archive's lag and traffic."""
    lag: timedelta = stats.lag.ToTimedelta()
    yield gauge("stateward_archive_lag_seconds", "Age of the oldest entry not archived.", lag.total_seconds())
    yield gauge("stateward_archive_lag_entries", "Journal entries not archived.", stats.lag_entries)
    yield gauge("stateward_archive_lag_bytes", "Sealed bytes not archived.", stats.lag_bytes)
    yield gauge("stateward_archive_dirty_threads", "Threads with entries not archived.", stats.dirty_threads)
    yield gauge("stateward_archive_owned_threads", "Threads that this sidecar holds.", stats.owned_threads)
    yield gauge("stateward_archive_orphans", "Orphans on this disk.", stats.orphans)
    yield gauge("stateward_archive_rolled_back_threads", "Held threads whose HEAD was set back.", stats.rolled_back)
    yield gauge("stateward_archive_away", "1 if the bucket does not answer.", stats.away)
    yield counter("stateward_archive_heads", "HEADs written.", stats.heads)
    yield counter("stateward_archive_objects", "Other objects written.", stats.objects)
    yield counter("stateward_archive_sent_bytes", "Bytes of both.", stats.head_bytes + stats.object_bytes)
    yield counter("stateward_archive_requests", "Requests to the bucket.", stats.requests)


def gauge(name: str, help_text: str, value: float) -> Metric:
    """A family of one gauge."""
    return GaugeMetricFamily(name, help_text, value=float(value))


def counter(name: str, help_text: str, value: float) -> Metric:
    """A family of one counter; Prometheus sees its name with ``_total``."""
    return CounterMetricFamily(name, help_text, value=float(value))


def histogram(name: str, help_text: str, labels: Labels, found: Mapping[Labels, Histogram]) -> Metric:
    """A family of histograms."""
    family = HistogramMetricFamily(name, help_text, labels=labels)
    for values, each in found.items():
        total, running, buckets = each.total, 0, []
        for bound, count in zip((*each.bounds, float("inf")), list(each.counts), strict=True):
            running += count
            buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), running))
        family.add_metric(values, buckets, total)
    return family
