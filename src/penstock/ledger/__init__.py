"""The idea that everything stands on: a Kafka topic of facts, folded by a pure machine into state.

`machine.py` the rules that all ledgers share · `codec.py` facts as bytes · `clock.py` watching the log's clock ·
`log.py` the port, `kafka_log.py` and `memory_log.py` behind it · `snapshot.py` short replay and cutting ·
`tail.py` the reader that drives it all · `operator.py` what only a person may write.
"""

from penstock.ledger.codec import Codec, Record, encode
from penstock.ledger.log import Entry, Log, Transactions
from penstock.ledger.machine import (
    ACCEPTED,
    UNCHANGED,
    ClockReset,
    Fold,
    Genesis,
    Kind,
    Machine,
    Verdict,
    VersionRaised,
    ignored,
)
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import ReadBack, Tail, Ticket, read_to_end

__all__ = [
    "ACCEPTED",
    "UNCHANGED",
    "ClockReset",
    "Codec",
    "Entry",
    "Fold",
    "Genesis",
    "Kind",
    "Log",
    "Machine",
    "ReadBack",
    "Record",
    "Snapshots",
    "Tail",
    "Ticket",
    "Transactions",
    "Verdict",
    "VersionRaised",
    "encode",
    "ignored",
    "read_to_end",
]
