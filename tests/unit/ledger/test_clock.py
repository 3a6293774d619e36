from __future__ import annotations

from penstock.ledger.clock import JumpWatch, LocalLease


def test_time_that_passes_here_and_there_alike_is_no_jump() -> None:
    watch = JumpWatch(tolerance_ms=100)
    watch.observe(log_clock_ms=5_000, monotonic_ms=70)

    assert watch.observe(log_clock_ms=3_605_000, monotonic_ms=3_600_070) == 0


def test_a_log_clock_that_runs_ahead_is_told_once() -> None:
    watch = JumpWatch(tolerance_ms=100)
    watch.observe(log_clock_ms=5_000, monotonic_ms=0)

    assert watch.observe(log_clock_ms=7_000, monotonic_ms=500) == 1_500
    assert watch.observe(log_clock_ms=7_010, monotonic_ms=510) == 0


def test_a_jump_after_an_idle_hour_is_seen() -> None:
    watch = JumpWatch(tolerance_ms=100)
    watch.observe(log_clock_ms=0, monotonic_ms=0)

    assert watch.observe(log_clock_ms=4_000_000, monotonic_ms=3_600_000) == 400_000


def test_a_log_clock_that_stands_still_is_no_jump() -> None:
    watch = JumpWatch(tolerance_ms=100)
    watch.observe(log_clock_ms=9_000, monotonic_ms=0)

    assert watch.observe(log_clock_ms=9_000, monotonic_ms=50_000) == 0


def test_what_was_forgotten_is_no_measure() -> None:
    watch = JumpWatch(tolerance_ms=100)
    watch.observe(log_clock_ms=0, monotonic_ms=0)
    watch.forget()

    assert watch.observe(log_clock_ms=10**9, monotonic_ms=1) == 0


def test_a_local_lease_counts_from_before_the_renewal_was_sent() -> None:
    lease = LocalLease(lasts_ms=300)
    lease.renewed(sent_ms=1_000)

    assert lease.is_good(1_299)
    assert not lease.is_good(1_300)


def test_a_late_answer_to_an_older_renewal_does_not_shorten_the_lease() -> None:
    lease = LocalLease(lasts_ms=300)
    lease.renewed(sent_ms=1_200)
    lease.renewed(sent_ms=1_000)

    assert lease.is_good(1_400)


def test_what_was_never_renewed_is_not_held() -> None:
    lease = LocalLease(lasts_ms=300)

    assert not lease.is_good(0)
    assert not lease.is_due(1_000, every_ms=1)
