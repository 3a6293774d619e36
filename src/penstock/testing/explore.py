"""Search without chance: every state that a small model can reach, breadth first, so that the first fault found is the
shortest one.

A model is a start, the moves that are possible in a state, and a check of every move. States that have the same key are
visited once; the key may leave out whatever the future does not depend on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S")


class Move(NamedTuple, Generic[S]):
    """One step of the model: what it is called, where it leads, what it broke, and what is worth counting about it."""

    label: str
    state: S
    violation: str | None = None
    landmarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """A violated property, and the shortest way to it."""

    violation: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.violation, *(f"  {number}. {label}" for number, label in enumerate(self.path, 1))])


@dataclass(slots=True)
class Exploration:
    """What a search saw."""

    states: int = 0
    moves: int = 0
    depth: int = 0
    is_complete: bool = True
    """Whether nothing was left out but what lies beyond the greatest depth."""
    landmarks: Counter[str] = field(default_factory=Counter)
    fault: Fault | None = None


def no_check(state: object) -> str | None:
    return None


def explore(
    initial: S,
    moves: Callable[[S], Iterable[Move[S]]],
    check: Callable[[S], str | None] = no_check,
    *,
    key: Callable[[S], Hashable],
    depth_max: int | None = None,
    states_max: int = 1_000_000,
) -> Exploration:
    """Visit every reachable state once, nearest first; stop at the first move or state that violates something."""
    seen = Exploration(states=1)
    first = key(initial)
    came_from: dict[Hashable, tuple[Hashable, str] | None] = {first: None}
    waiting = deque([(initial, first, 0)])
    while waiting:
        state, here, depth = waiting.popleft()
        if depth == depth_max:
            continue
        for move in moves(state):
            seen.moves += 1
            seen.landmarks.update(move.landmarks)
            violation = move.violation or check(move.state)
            if violation is not None:
                seen.fault = Fault(violation, (*_path(came_from, here), move.label))
                return seen
            there = key(move.state)
            if there in came_from:
                continue
            if len(came_from) >= states_max:
                seen.is_complete = False
                continue
            came_from[there] = (here, move.label)
            seen.depth = depth + 1
            waiting.append((move.state, there, depth + 1))
        seen.states = len(came_from)
    return seen


def _path(came_from: dict[Hashable, tuple[Hashable, str] | None], key: Hashable) -> tuple[str, ...]:
    labels: list[str] = []
    step = came_from[key]
    while step is not None:
        key, label = step
        labels.append(label)
        step = came_from[key]
    return tuple(reversed(labels))
