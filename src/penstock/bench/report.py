"""What every bench prints: one document with its figures, and on what they were measured."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from penstock import __version__


@dataclass(frozen=True, slots=True)
class Bound:
    """What a figure has to be."""

    side: Literal["at least", "at most"]
    value: float

    def is_met(self, figure: float) -> bool:
        return figure >= self.value if self.side == "at least" else figure <= self.value

    def __str__(self) -> str:
        return f"{self.side} {self.value:,g}"


@dataclass(frozen=True, slots=True)
class Within:
    """What a figure has to lie between."""

    least: float
    most: float

    def is_met(self, figure: float) -> bool:
        return self.least <= figure <= self.most

    def __str__(self) -> str:
        return f"{self.least:,g} to {self.most:,g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    bench: str
    figures: Mapping[str, float]
    bounds: Mapping[str, Bound | Within]
    runs: int

    def missed(self) -> list[str]:
        return [name for name, bound in self.bounds.items() if not bound.is_met(self.figures[name])]

    def document(self) -> dict[str, object]:
        return {
            "bench": self.bench,
            "figures": {name: float(f"{value:.4g}") for name, value in self.figures.items()},
            "bounds": {name: str(bound) for name, bound in self.bounds.items()},
            "missed": self.missed(),
            "runs": self.runs,
            "versions": versions(),
            "machine": machine(),
        }


def versions() -> dict[str, str]:
    installed = {name: metadata.version(name) for name in ("confluent-kafka", "msgspec")}
    return {"penstock": __version__, "python": platform.python_version(), **installed}


def machine() -> dict[str, object]:
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def alternating(
    runs: int, one: Callable[[], float], other: Callable[[], float], *, told: Callable[[str], None]
) -> tuple[list[float], list[float]]:
    """Both measurements, in turns and each first half of the time: so what disturbs the machine disturbs both."""
    ones, others = [], []
    for number in range(runs):
        told(f"run {number + 1} of {runs}")
        if number % 2 == 0:
            ones.append(one())
            others.append(other())
        else:
            others.append(other())
            ones.append(one())
    return ones, others


def median_ratio(ones: list[float], others: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))
