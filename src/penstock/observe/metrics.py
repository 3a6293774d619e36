"""The listener that counts: events become Prometheus metrics, with few labels and base units in the names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from penstock import __version__
from penstock.observe import events
from penstock.observe.events import Event
from penstock.observe.logs import event_name
from penstock.observe.spread import Spread

M = TypeVar("M", bound=Counter | Gauge)

_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3_600)


class Counted(NamedTuple):
    """A counter that goes up by one with each event of a kind, or by a field of it; labels are fields of the event."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    amount: str = ""


class Measured(NamedTuple):
    """A field of an event: its newest value, or with `spread` the distribution of all of them."""

    name: str
    help: str
    field: str
    labels: tuple[str, ...] = ()
    spread: tuple[float, ...] = ()
    times: str = ""
    """With `spread`: the field that says how often the value was seen."""


COUNTED: Mapping[type[Event], Counted] = {
    events.BrokerStarted: Counted("penstock_broker_starts_total", "Embedded brokers started"),
    events.BrokerStopped: Counted(
        "penstock_broker_stops_total", "Embedded brokers ended, by exit code", ("exit_code",)
    ),
    events.RecordIgnored: Counted("penstock_ledger_records_ignored_total", "Records that are no facts", ("ledger",)),
    events.PartitionHalted: Counted("penstock_ledger_halts_total", "Partitions that came to a full stop", ("ledger",)),
    events.LogClockJumped: Counted("penstock_ledger_clock_jumps_total", "Log clock ran ahead of ours", ("ledger",)),
    events.LedgerRebuilt: Counted("penstock_ledger_rebuilds_total", "States built anew from the log", ("ledger",)),
    events.SnapshotWritten: Counted("penstock_ledger_snapshots_total", "Snapshots written", ("ledger",)),
    events.LedgerCut: Counted("penstock_ledger_cuts_total", "Cuts behind a snapshot", ("ledger",)),
    events.AppendFailed: Counted("penstock_appends_failed_total", "Appends the client gave up", ("topic",)),
    events.TransactionUnsettled: Counted(
        "penstock_transactions_unsettled_total", "Transactional calls without a known outcome", ("call",)
    ),
    events.ProducerFenced: Counted("penstock_producers_fenced_total", "Producers fenced by a successor", ("call",)),
    events.TransactionalIdChanged: Counted("penstock_transactional_ids_changed_total", "Fresh transactional ids taken"),
    events.JobFinished: Counted(
        "penstock_jobs_finished_total", "Runs of singleton jobs that came to their end", ("job",)
    ),
    events.JobFailed: Counted("penstock_jobs_failed_total", "Runs of singleton jobs that raised", ("job",)),
    events.ClaimGained: Counted("penstock_claims_gained_total", "Slots that were granted to us"),
    events.ClaimLost: Counted("penstock_claims_lost_total", "Slots that passed on while we held them"),
    events.ClaimGivenBack: Counted("penstock_claims_given_back_total", "Slots that we gave back"),
    events.MessageOverdue: Counted(
        "penstock_messages_overdue_total", "Messages not acked in time, by what became of them", ("group", "way")
    ),
    events.BurialFailed: Counted("penstock_burials_failed_total", "Dead letters that could not be written", ("topic",)),
    events.ConsumerStalled: Counted("penstock_consumers_stalled_total", "Consumers stuck in a message", ("group",)),
    events.MessagesSent: Counted(
        "penstock_messages_sent_total", "Messages that were acknowledged", ("queue",), "count"
    ),
    events.MessagesReceived: Counted(
        "penstock_messages_received_total", "Messages granted to this process", ("queue",), "count"
    ),
    events.MessagesAcked: Counted("penstock_messages_acked_total", "Messages finished", ("queue",), "count"),
    events.MessagesRedelivered: Counted(
        "penstock_messages_redelivered_total", "Messages that come again, by cause", ("queue", "cause"), "count"
    ),
    events.MessagesBuried: Counted(
        "penstock_messages_buried_total", "Messages given up, by reason", ("queue", "reason"), "count"
    ),
    events.LeaseLost: Counted("penstock_leases_lost_total", "Leases that passed on while we held them", ("queue",)),
    events.OutcomesDropped: Counted(
        "penstock_outcomes_dropped_total", "Outcomes of messages that came too late", ("queue",), "count"
    ),
    events.MessageFailed: Counted("penstock_messages_failed_total", "Attempts that failed", ("queue",)),
    events.MessageOverTime: Counted(
        "penstock_messages_over_time_total", "Messages whose handler took too long", ("queue",)
    ),
    events.DataLost: Counted(
        "penstock_records_lost_total", "Records that were deleted before they were finished", ("topic",), "count"
    ),
    events.TopicMissing: Counted("penstock_topics_missing_total", "Looks for a topic that is not there", ("topic",)),
    events.LakeLanded: Counted("penstock_lake_rows_total", "Rows that were landed", ("pipeline",), "rows"),
    events.LakeBadMessages: Counted(
        "penstock_lake_bad_messages_total", "Messages that are no rows", ("pipeline",), "count"
    ),
    events.LakeStreamRestarted: Counted(
        "penstock_lake_restarts_total", "Streams begun again after something that passes", ("pipeline",)
    ),
    events.LakePipelineFailed: Counted(
        "penstock_lake_failures_total", "Pipelines that ended by themselves", ("pipeline",)
    ),
    events.LakeLockLost: Counted("penstock_lake_locks_lost_total", "Pipelines stopped for a lost lock", ("pipeline",)),
    events.LakeMaintained: Counted(
        "penstock_lake_files_compacted_total",
        "Small files that became part of large ones",
        ("pipeline",),
        "files_compacted",
    ),
}

MEASURED: Mapping[type[Event], tuple[Measured, ...]] = {
    events.BrokerStarted: (
        Measured(
            "penstock_broker_start_seconds",
            "Time until an embedded broker answers",
            "seconds",
            (),
            (1, 2, 4, 8, 16, 32, 64),
        ),
    ),
    events.JarsFetched: (Measured("penstock_jars_fetch_seconds", "Time to fetch the broker's jars", "seconds"),),
    events.SnapshotWritten: (
        Measured("penstock_ledger_snapshot_bytes", "Size of the newest snapshot", "size_bytes", ("ledger",)),
    ),
    events.ClaimsCounted: (
        Measured(
            "penstock_claims", "Slots of a group by state, as this process sees them", "count", ("group", "state")
        ),
    ),
    events.MessagesSent: (
        Measured("penstock_send_seconds", "Time from a call to its acknowledgement", "seconds", ("queue",), _LATENCY_S),
    ),
    events.MessagesBegun: (
        Measured(
            "penstock_message_wait_seconds",
            "Time that a message was due before a handler began with it",
            "seconds",
            ("queue",),
            _LATENCY_S,
            "count",
        ),
    ),
    events.HandlersReturned: (
        Measured(
            "penstock_message_handler_seconds",
            "Time that a handler took for a message or a batch",
            "seconds",
            ("queue",),
            _LATENCY_S,
            "count",
        ),
    ),
    events.QueueCounted: (
        Measured("penstock_queue_ready", "Messages that could be taken, in our partitions", "ready", ("queue",)),
        Measured("penstock_queue_leased", "Messages in hand, in our partitions", "leased", ("queue",)),
        Measured("penstock_queue_waiting", "Messages that wait for their time", "waiting", ("queue",)),
        Measured("penstock_queue_oldest_age_seconds", "Age of the oldest message in them", "oldest_age_s", ("queue",)),
    ),
    events.LakeLanded: (
        Measured(
            "penstock_lake_commit_seconds",
            "Time to land a micro-batch, from reading it to the commit",
            "seconds",
            ("pipeline",),
            _LATENCY_S,
        ),
        Measured(
            "penstock_lake_table_version", "The newest version that we committed", "version", ("pipeline", "table")
        ),
    ),
    events.LakeProgressed: (
        Measured("penstock_lake_lag_messages", "Messages that are not landed yet", "lag_messages", ("pipeline",)),
        Measured("penstock_lake_lag_seconds", "Age of the oldest of them", "lag_seconds", ("pipeline",)),
    ),
}


class Metrics:
    """Subscribe it to the events: `with subscribed(Metrics()) ...`. Without a registry it has one of its own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        build = Gauge("penstock_build_info", "The version that runs", ["version"], registry=self.registry)
        build.labels(__version__).set(1)
        self._all = Counter("penstock_events_total", "All events, by kind", ["event"], registry=self.registry)
        self._counted = {kind: self._counter(counted) for kind, counted in COUNTED.items()}
        self._measured = {kind: [*map(self._instrument, measured)] for kind, measured in MEASURED.items()}

    def __call__(self, event: Event) -> None:
        kind = type(event)
        self._all.labels(event_name(event).replace(" ", "_")).inc()
        if kind in COUNTED:
            counted = COUNTED[kind]
            amount = getattr(event, counted.amount) if counted.amount else 1
            _labelled(self._counted[kind], event, counted.labels).inc(amount)
        for measured, instrument in zip(MEASURED.get(kind, ()), self._measured.get(kind, ()), strict=True):
            value = getattr(event, measured.field)
            if isinstance(instrument, Spread):
                labels = tuple(str(getattr(event, label)) for label in measured.labels)
                instrument.add(labels, value, getattr(event, measured.times) if measured.times else 1)
            else:
                _labelled(instrument, event, measured.labels).set(value)

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

    def _counter(self, counted: Counted) -> Counter:
        return Counter(counted.name, counted.help, counted.labels, registry=self.registry)

    def _instrument(self, measured: Measured) -> Spread | Gauge:
        if measured.spread:
            spread = Spread(measured.name, measured.help, measured.labels, measured.spread)
            self.registry.register(spread)
            return spread
        return Gauge(measured.name, measured.help, measured.labels, registry=self.registry)


def _labelled(metric: M, event: Event, labels: tuple[str, ...]) -> M:
    if not labels:
        return metric
    return metric.labels(*(getattr(event, label) for label in labels))  # type: ignore[return-value]
