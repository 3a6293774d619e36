"""How a member fences who had its slot before: step by step, with initialisations that end when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from penstock.claims.fencing import Fencing, Initialisation, Sweeping, in_a_thread
from penstock.claims.member import Listener, Member, Tenure
from penstock.claims.records import Beat, Claimed, ClaimReleased, ClaimsFounded, Heartbeat, Slot
from penstock.claims.state import Claims
from penstock.errors import AccessDenied, BrokerUnavailable, InvariantBroken, TransientError
from penstock.ledger.codec import Record, encode
from penstock.ledger.memory_log import MemoryBroker
from penstock.ledger.snapshot import Snapshots
from penstock.ledger.tail import Tail

HB_MS = 300
SLOT, OTHER = Slot("g", "t", 0), Slot("g", "t", 1)
FOUNDED = ClaimsFounded(partitions=1, heartbeat_ms=HB_MS, window=10, delivery_limit=2)


class Initialisations:
    """Those that were begun; each ends when the test says so."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, Initialisation]] = []

    def __call__(self, transactional_id: str) -> Initialisation:
        self.begun.append((transactional_id, Initialisation()))
        return self.begun[-1][1]

    @property
    def ids(self) -> list[str]:
        return [name for name, _ in self.begun]

    def end(self, number: int = -1) -> None:
        self.begun[number][1].is_done = self.begun[number][1].is_over = True


class Cluster:
    """One member on a log in memory, under a clock that the test moves, and others who only write."""

    def __init__(self, *slots: Slot, fencing: type[Fencing] = Fencing) -> None:
        self.now_ms = 1_000
        self.broker = MemoryBroker(now_ms=lambda: self.now_ms)
        self.broker.create("claims", 1)
        self.broker.create("claims.snapshots", 1)
        self.initialisations = Initialisations()
        self.fencing = fencing(self.initialisations, within_s=0.05)
        self.fencing.renew("own-1")
        self.gained: list[Tenure] = []
        self.write(FOUNDED)
        self._slots = slots or (SLOT,)
        self.member = self._member()

    def _member(self) -> Member:
        tail = Tail(
            self.broker.log("claims"),
            Snapshots(self.broker.log("claims.snapshots")),
            machine=Claims,
            instance="1",
            monotonic_ms=lambda: self.now_ms,
            fresh_ms=HB_MS // 2,
            snapshot_every=10**6,
        )
        return Member(
            tail,
            founded=FOUNDED,
            client="b",
            place=lambda slot, partitions: 0,
            monotonic_ms=lambda: self.now_ms,
            listener=Listener(gained=self.gained.append),
            fencing=self.fencing,
        )

    def write(self, record: Record) -> None:
        self.broker.append("claims", 0, encode(record), None)

    def leave_behind(self, *ids: str, slot: Slot = SLOT) -> None:
        """Former owners that named these ids."""
        for number, name in enumerate(ids):
            self.write(Claimed(slot, f"a{number}", "1", producer=name))
            offset = len(self.broker.partitions("claims")[0].stored) - 1
            self.write(ClaimReleased(slot, f"a{number}", "1", offset, 7))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_ms += HB_MS // 10
            self.member.step(0)

    def begin(self) -> None:
        self.member.want(self._slots)
        self.step(3)

    @property
    def producers(self) -> set[str]:
        return self.member.tail.fold(0).machine.slot(SLOT).producers

    def beats(self, slot: Slot = SLOT) -> list[Beat]:
        """Every beat of the slot that the member has written."""
        tail = Tail(
            self.broker.log("claims"),
            Snapshots(self.broker.log("claims.snapshots")),
            machine=Claims,
            instance="test",
            monotonic_ms=lambda: self.now_ms,
            fresh_ms=1,
            snapshot_every=10**6,
        )
        records: list[Record | None] = []
        tail.witness = lambda entry, judged: records.append(judged.record)
        tail.follow([0])
        tail.step(0)
        heartbeats = [record for record in records if isinstance(record, Heartbeat)]
        return [beat for heartbeat in heartbeats for beat in heartbeat.beats if beat.slot == slot]


def test_a_slot_that_names_nobody_is_gained_at_once() -> None:
    cluster = Cluster()
    cluster.begin()

    assert [tenure.slot for tenure in cluster.gained] == [SLOT]
    assert cluster.producers == {"own-1"}
    assert cluster.initialisations.ids == []


def test_every_other_id_is_initialised_listed_and_read_back_before_the_slot_is_gained() -> None:
    cluster = Cluster()
    cluster.leave_behind("pa", "pb")
    cluster.begin()
    cluster.step(10)
    assert cluster.initialisations.ids == ["pa"]
    assert cluster.gained == []
    assert {beat.fenced for beat in cluster.beats()} == {()}

    cluster.initialisations.end()
    cluster.step(4)
    assert cluster.initialisations.ids == ["pa", "pb"]
    assert {beat.fenced for beat in cluster.beats()} == {()}
    assert cluster.producers == {"own-1", "pa", "pb"}

    cluster.initialisations.end()
    cluster.step(4)
    assert ("pa", "pb") in {beat.fenced for beat in cluster.beats()}
    assert cluster.producers == {"own-1"}
    assert [tenure.position for tenure in cluster.gained] == [7]


def test_nothing_is_handed_out_and_the_slot_is_kept_while_others_are_fenced() -> None:
    cluster = Cluster()
    cluster.leave_behind("pa")
    cluster.begin()
    tenure = cluster.member.held[SLOT]

    cluster.step(40)

    assert cluster.member.held[SLOT] is tenure
    assert not cluster.member.is_good(tenure)
    assert len(cluster.beats()) > 8


def test_who_lost_the_slot_meanwhile_initialises_nobody_else() -> None:
    cluster = Cluster()
    cluster.leave_behind("pa", "pb")
    cluster.begin()
    cluster.now_ms += 3 * HB_MS
    cluster.write(Claimed(SLOT, "c", "1", producer="pc"))

    cluster.initialisations.end()
    cluster.step(10)

    assert cluster.initialisations.ids == ["pa"]
    assert cluster.gained == []


class DoesNotReadOn(Fencing):
    """Planted: goes on after an initialisation with what it knew before."""

    def _initialised(self, grant: object, name: str) -> None:
        super()._initialised(grant, name)  # type: ignore[arg-type]
        grant.reads_on = False  # type: ignore[attr-defined]


@pytest.mark.parametrize(("fencing", "goes_on"), [(Fencing, False), (DoesNotReadOn, True)])
def test_it_reads_on_to_an_end_asked_for_after_the_initialisation(fencing: type[Fencing], goes_on: bool) -> None:
    """The next id is initialised only by who has read that far, and is still the owner."""
    cluster = Cluster(fencing=fencing)
    cluster.leave_behind("pa", "pb")
    cluster.begin()
    log = cluster.member.tail.log
    cluster.initialisations.end()
    log.read = lambda count_max, timeout_ms: []  # type: ignore[method-assign]
    cluster.write(Claimed(SLOT, "c", "1"))

    cluster.step(3)

    assert (cluster.initialisations.ids == ["pa", "pb"]) == goes_on


def test_one_initialisation_serves_all_slots_that_were_granted_before_it_began() -> None:
    cluster = Cluster(SLOT, OTHER)
    cluster.leave_behind("pa")
    cluster.leave_behind("pa", slot=OTHER)
    cluster.begin()
    cluster.initialisations.end()
    cluster.step(5)

    assert cluster.initialisations.ids == ["pa"]
    assert {tenure.slot for tenure in cluster.gained} == {SLOT, OTHER}


def test_a_slot_that_was_granted_while_it_ran_has_one_of_its_own() -> None:
    cluster = Cluster(SLOT)
    cluster.leave_behind("pa")
    cluster.leave_behind("pa", slot=OTHER)
    cluster.begin()
    cluster.member.want([SLOT, OTHER])
    cluster.step(3)
    assert OTHER in cluster.member.held
    cluster.initialisations.end()
    cluster.step(5)
    assert {tenure.slot for tenure in cluster.gained} == {SLOT}

    cluster.initialisations.end()
    cluster.step(5)

    assert cluster.initialisations.ids == ["pa", "pa"]
    assert {tenure.slot for tenure in cluster.gained} == {SLOT, OTHER}


def test_an_initialisation_that_may_work_later_is_repeated_and_another_failure_ends_the_member() -> None:
    cluster = Cluster()
    cluster.leave_behind("pa")
    cluster.begin()
    first = cluster.initialisations.begun[-1][1]
    first.failure, first.is_over = BrokerUnavailable("away"), True
    cluster.step(2)
    assert cluster.initialisations.ids == ["pa", "pa"]

    second = cluster.initialisations.begun[-1][1]
    second.failure, second.is_over = AccessDenied("no"), True
    with pytest.raises(AccessDenied):
        cluster.step(2)


# A fresh id


def test_a_fresh_id_is_told_by_a_heartbeat_with_its_settled_predecessor_and_may_be_used_when_read_back() -> None:
    cluster = Cluster()
    cluster.begin()
    cluster.fencing.renew("own-2")
    assert not cluster.fencing.is_announced

    cluster.step(3)

    assert cluster.fencing.is_announced
    assert cluster.producers == {"own-2"}
    told = [beat for beat in cluster.beats() if beat.producer is not None]
    assert [(beat.producer, beat.fenced) for beat in told] == [("own-2", ("own-1",))]


def test_a_claim_that_named_the_old_id_is_gained_only_after_the_fresh_one_is_told() -> None:
    cluster = Cluster()
    cluster.member.want([SLOT])
    while not cluster.member._questions:
        cluster.step()
    cluster.fencing.renew("own-2")

    cluster.step()
    assert cluster.gained == []
    cluster.step(3)

    assert len(cluster.gained) == 1
    assert cluster.producers == {"own-2"}


def test_announcing_waits_for_the_log_and_says_so_when_that_takes_too_long() -> None:
    cluster = Cluster()
    cluster.begin()

    with pytest.raises(TransientError, match="own-2"):
        cluster.fencing.announce("own-2")


def test_announcing_returns_when_the_last_slot_is_told_or_gone() -> None:
    cluster = Cluster()
    cluster.fencing = cluster.member._fencing = Fencing(cluster.initialisations, within_s=60)
    cluster.fencing.announce("own-1")
    cluster.begin()
    thread = threading.Thread(target=cluster.fencing.announce, args=("own-2",))
    thread.start()
    while thread.is_alive():
        cluster.step()
    thread.join()

    assert cluster.producers == {"own-2"}


def test_nothing_is_claimed_before_an_id_was_initialised() -> None:
    with pytest.raises(InvariantBroken):
        _ = Fencing(Initialisations()).id


# Giving back


def settled(cluster: Cluster, slots: Iterable[Slot] = ()) -> bool:
    cluster.member.want(slots)
    cluster.step(9)
    return SLOT not in cluster.member.held


def test_a_release_clears_the_own_id() -> None:
    cluster = Cluster()
    cluster.begin()

    assert settled(cluster)
    assert cluster.producers == set()


def test_a_slot_is_not_given_back_while_a_transaction_with_work_of_it_is_open() -> None:
    cluster = Cluster()
    cluster.begin()
    cluster.fencing.begun([SLOT])

    assert not settled(cluster)
    assert not cluster.member.is_good(cluster.member.held[SLOT])
    assert len(cluster.beats()) > 2

    cluster.fencing.ended(is_known=True)
    assert settled(cluster)
    assert cluster.producers == set()


def test_after_a_doubt_the_own_id_stays_for_the_next_owner_to_fence() -> None:
    cluster = Cluster()
    cluster.begin()
    cluster.fencing.begun([SLOT])
    cluster.fencing.ended(is_known=False)

    assert settled(cluster)
    assert cluster.producers == {"own-1"}


def test_what_was_not_fenced_yet_stays_when_the_slot_is_given_back() -> None:
    cluster = Cluster()
    cluster.leave_behind("pa", "pb")
    cluster.begin()
    cluster.initialisations.end()
    cluster.step(2)

    assert settled(cluster)
    assert cluster.producers == {"pb"}
    assert cluster.gained == []


# Elsewhere


def test_a_thread_initialises_and_tells_how_it_went() -> None:
    def fence(name: str) -> None:
        if name == "bad":
            raise AccessDenied("no")

    good, bad = in_a_thread(fence)("good"), in_a_thread(fence)("bad")
    for thread in threading.enumerate():
        if thread.name.startswith("fence-"):
            thread.join(60)

    assert (good.is_over, good.is_done, good.failure) == (True, True, None)
    assert (bad.is_over, bad.is_done) == (True, False)
    assert isinstance(bad.failure, AccessDenied)


def test_who_sweeps_is_told_once_for_each_initialisation_and_each_slot_has_its_own() -> None:
    initialisations = Initialisations()
    sweeping = Sweeping(initialisations)

    assert not sweeping.is_fenced(SLOT, "pa")
    assert not sweeping.is_fenced(OTHER, "pa")
    assert not sweeping.is_fenced(SLOT, "pa")
    initialisations.end(0)
    assert sweeping.is_fenced(SLOT, "pa")
    assert not sweeping.is_fenced(OTHER, "pa")
    assert not sweeping.is_fenced(SLOT, "pa")

    assert initialisations.ids == ["pa", "pa", "pa"]


def test_a_sweep_that_failed_for_good_says_so() -> None:
    initialisations = Initialisations()
    sweeping = Sweeping(initialisations)
    sweeping.is_fenced(SLOT, "pa")
    initialisations.begun[0][1].failure = AccessDenied("no")
    initialisations.begun[0][1].is_over = True

    with pytest.raises(AccessDenied):
        sweeping.is_fenced(SLOT, "pa")


def test_a_sweep_that_is_about_to_end_is_answered_when_it_has_ended_and_leaves_nothing_behind() -> None:
    initialisations = Initialisations()
    sweeping = Sweeping(initialisations)
    sweeping.is_fenced(SLOT, "pa")
    initialisations.begun[0][1].is_done = True

    assert not sweeping.is_fenced(SLOT, "pa")
    initialisations.begun[0][1].is_over = True
    assert sweeping.is_fenced(SLOT, "pa")
    assert not sweeping.is_fenced(SLOT, "pa"), "a later question begins another one"
    assert initialisations.ids == ["pa", "pa"]
