"""Mending what can be mended without loss: missing topics, their settings, a log clock that stands in the future."""

from __future__ import annotations

import getpass
import socket

from penstock.doctor.findings import CLOCK_FROZEN_MS, Seen
from penstock.kafka.topics import Admin
from penstock.ledger.operator import reset_clock
from penstock.settings import Settings
from penstock.topics import Step, carry_out


def mend(settings: Settings, seen: Seen) -> tuple[str, ...]:
    """Do it, and say what was done."""
    todo = [step for step in seen.topic_steps() if step.action in ("create", "alter")]
    if todo:
        with Admin(settings.kafka) as admin:
            carry_out(todo, admin)
    frozen = [clock.ledger for clock in seen.clocks if clock.clock_ms - seen.now_ms > CLOCK_FROZEN_MS]
    for ledger in frozen:
        reset_clock(
            settings, settings.topic_prefix + ledger, by=f"{_user()}@{socket.gethostname()} (penstock doctor --fix)"
        )
    return (*map(_told, todo), *(f"appended ClockReset to every partition of ledger {ledger}" for ledger in frozen))


def _told(step: Step) -> str:
    if step.action == "create":
        return (
            f"made topic {step.spec.name} with {step.spec.partitions} partitions, replication {step.spec.replication}"
        )
    changes = ", ".join(f"{c.setting} from {c.is_now or 'unset'} to {c.should_be}" for c in step.changes)
    return f"set {changes} of topic {step.spec.name}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's nameless user
        return "unknown"
