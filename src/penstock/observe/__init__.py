"""Telling: everything that can happen is an event; logs and metrics are two listeners to the same events."""

from penstock.observe.events import Event, Listener, subscribed, tell

__all__ = ["Event", "Listener", "subscribed", "tell"]
