"""The listener that counts: events become Prometheus metrics, with few labels and base units in the names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from penstock import __version__
from penstock.observe import events
from penstock.observe.events import Event
from penstock.observe.logs import event_name

M = TypeVar("M", bound=Counter | Gauge | Histogram)


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
    events.TopicMissing: Counted("penstock_topics_missing_total", "Looks for a topic that is not there", ("topic",)),
}

MEASURED: Mapping[type[Event], Measured] = {
    events.BrokerStarted: Measured(
        "penstock_broker_start_seconds",
        "Time until an embedded broker answers",
        "seconds",
        (),
        (1, 2, 4, 8, 16, 32, 64),
    ),
    events.JarsFetched: Measured("penstock_jars_fetch_seconds", "Time to fetch the broker's jars", "seconds"),
    events.SnapshotWritten: Measured(
        "penstock_ledger_snapshot_bytes", "Size of the newest snapshot", "size_bytes", ("ledger",)
    ),
    events.ClaimsCounted: Measured(
        "penstock_claims", "Slots of a group by state, as this process sees them", "count", ("group", "state")
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
        self._measured = {kind: self._instrument(measured) for kind, measured in MEASURED.items()}

    def __call__(self, event: Event) -> None:
        kind = type(event)
        self._all.labels(event_name(event).replace(" ", "_")).inc()
        if kind in COUNTED:
            counted = COUNTED[kind]
            amount = getattr(event, counted.amount) if counted.amount else 1
            _labelled(self._counted[kind], event, counted.labels).inc(amount)
        if kind in MEASURED:
            measured = MEASURED[kind]
            instrument = _labelled(self._measured[kind], event, measured.labels)
            value = getattr(event, measured.field)
            if isinstance(instrument, Histogram):
                instrument.observe(value)
            else:
                instrument.set(value)

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

    def _counter(self, counted: Counted) -> Counter:
        return Counter(counted.name, counted.help, counted.labels, registry=self.registry)

    def _instrument(self, measured: Measured) -> Histogram | Gauge:
        if measured.spread:
            return Histogram(
                measured.name, measured.help, measured.labels, registry=self.registry, buckets=measured.spread
            )
        return Gauge(measured.name, measured.help, measured.labels, registry=self.registry)


def _labelled(metric: M, event: Event, labels: tuple[str, ...]) -> M:
    if not labels:
        return metric
    return metric.labels(*(getattr(event, label) for label in labels))  # type: ignore[return-value]
