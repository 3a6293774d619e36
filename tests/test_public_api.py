"""What `penstock` exports, by name: whoever adds or removes something says so here and in the changelog."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from types import ModuleType

import pytest

import penstock

MODULES = ["broker", "claims", "errors", "kafka", "lake", "ledger", "queue"]
EXPORTED = sorted(
    [
        *("App", "__version__", "lock", "once"),
        *("Backoff", "Batch", "Bury", "Message", "Outgoing", "Retry"),
        *MODULES,
    ]
)

ERRORS = {
    *("PenstockError", "UsageError", "ConfigError", "NotFound", "TransientError", "BrokerUnavailable", "Refused"),
    *("Halted", "GenesisMismatch", "CheckFailed", "Fenced", "TransactionAborted", "OutcomeUnknown"),
    *("TransactionBroken", "Unavailable", "InvariantBroken"),
}


def test_penstock_exports_this_and_nothing_else() -> None:
    assert sorted(penstock.__all__) == EXPORTED
    assert dir(penstock) == EXPORTED


@pytest.mark.parametrize("name", MODULES)
def test_every_exported_module_is_there_when_it_is_named(name: str) -> None:
    assert isinstance(getattr(penstock, name), ModuleType)


@pytest.mark.parametrize("package", ["broker", "kafka", "lake", "ledger", "observe"])
def test_what_a_package_exports_is_there(package: str) -> None:
    module = importlib.import_module(f"penstock.{package}")

    assert [name for name in getattr(module, "__all__", []) if not hasattr(module, name)] == []


def test_what_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'queueing'"):
        penstock.queueing  # noqa: B018


def test_the_promised_errors_are_there_and_in_the_tree_that_the_file_draws() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", penstock.errors.__doc__ or "")) | {"PenstockError"}
    defined = {
        name
        for name, kind in vars(penstock.errors).items()
        if isinstance(kind, type) and issubclass(kind, penstock.errors.PenstockError)
    }

    assert defined >= ERRORS
    assert drawn == defined


def test_importing_penstock_imports_no_client() -> None:
    heavy = ("confluent_kafka", "pyspark", "rich", "structlog", "jgo")
    code = f"import sys, penstock; print([name for name in {heavy!r} if name in sys.modules])"

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "[]"
