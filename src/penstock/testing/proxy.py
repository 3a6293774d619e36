"""A TCP proxy on loopback that understands Kafka frames, so that a test can bother one single request.

    with FrameProxy(kafka.bootstrap) as proxy:
        held = proxy.hold(Api.END_TXN)          # take EndTxn requests out of the stream ...
        ...                                     # a client of proxy.bootstrap now waits for its commit
        held.wait()                             # ... until one was caught
        held.release()                          # and let it reach the broker after all, also when its client has gone

Brokers advertise their own addresses; the proxy writes its own ports in their place (same host, so that no frame
changes its length). Addresses that a broker names inside a Produce or Fetch answer (a leader that moved) are left as
they are: such a client may then go past the proxy.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import TracebackType
from typing import Self

from penstock.errors import UsageError

_WAIT_S = 30.0


class Api(IntEnum):
    """The api keys of the Kafka protocol that tests care about."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CLUSTER = 60


_NAMES_BROKERS = frozenset({Api.METADATA, Api.FIND_COORDINATOR, Api.DESCRIBE_CLUSTER})


class Side(Enum):
    REQUEST = "request"
    RESPONSE = "response"


class Deed(Enum):
    HOLD = "hold"
    DELAY = "delay"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Frame:
    """One request or response, as it was on the wire, without its length."""

    api: int
    body: bytes


@dataclass(eq=False)
class Rule:
    """What happens to the next `times` frames of one kind (None: to all, until `lift` or `release`)."""

    api: int
    side: Side
    deed: Deed
    times: int | None = None
    delay_s: float = 0.0
    matches: Callable[[Frame], bool] = field(default=lambda frame: True)
    _caught: int = 0
    _lifted: bool = False
    _held: list[Callable[[], None]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def caught(self) -> int:
        """How many frames this rule has acted on."""
        return self._caught

    def wait(self, count: int = 1, *, timeout_s: float = _WAIT_S) -> None:
        """Return when `count` frames were caught. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._caught >= count, timeout_s):
                raise TimeoutError(
                    f"{self._caught} of {count} {self.side.value}s of api {self.api} came in {timeout_s} s"
                )

    def lift(self) -> None:
        """Let later frames pass; what is held stays held."""
        with self._changed:
            self._lifted = True

    def release(self) -> int:
        """Lift the rule and send on what it held, in order; returns how many frames that were."""
        with self._changed:
            self._lifted = True
            held, self._held = self._held, []
        for send in held:
            send()
        return len(held)

    def takes(self, frame: Frame, side: Side, send: Callable[[], None]) -> bool:
        """Whether this rule acts on the frame; a held one is kept with the way to send it on."""
        if self.api != frame.api or self.side != side or not self.matches(frame):
            return False
        with self._changed:
            if self._lifted or (self.times is not None and self._caught >= self.times):
                return False
            self._caught += 1
            if self.deed is Deed.HOLD:
                self._held.append(send)
            self._changed.notify_all()
            return True

    @property
    def is_holding(self) -> bool:
        return bool(self._held)


class FrameProxy:
    """Stands before the brokers of `upstream` ("host:port,host:port"), one port of its own for each."""

    def __init__(self, upstream: str) -> None:
        self._rules: list[Rule] = []
        self._seen: Counter[int] = Counter()
        self._links: list[_Link] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._is_refusing = False
        self._listeners = {_address(each): socket.create_server(("127.0.0.1", 0)) for each in upstream.split(",")}
        self._renamed = [
            (_wire_address(address), _wire_address((address[0], listener.getsockname()[1])))
            for address, listener in self._listeners.items()
        ]
        self._threads = [
            threading.Thread(target=self._accept, args=pair, name="frame-proxy", daemon=True)
            for pair in self._listeners.items()
        ]
        for thread in self._threads:
            thread.start()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{address[0]}:{listener.getsockname()[1]}" for address, listener in self._listeners.items())

    def hold(self, api: int, *, side: Side = Side.REQUEST, times: int | None = None) -> Rule:
        """Take frames out of the stream until `release`; what comes behind them on the connection passes."""
        return self.add(Rule(api, side, Deed.HOLD, times))

    def delay(self, api: int, seconds: float, *, side: Side = Side.REQUEST, times: int | None = None) -> Rule:
        """Let frames, and all that comes behind them on the connection, wait."""
        return self.add(Rule(api, side, Deed.DELAY, times, delay_s=seconds))

    def drop(self, api: int, *, side: Side = Side.REQUEST, times: int | None = None) -> Rule:
        """Swallow frames: a lost request never happened, a lost response hides that it did."""
        return self.add(Rule(api, side, Deed.DROP, times))

    def add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Lift all rules and send on whatever is held."""
        with self._lock:
            rules, self._rules = self._rules, []
        for rule in rules:
            rule.release()

    def seen(self, api: int) -> int:
        """How many requests of this kind clients have sent so far, whatever became of them."""
        return self._seen[api]

    def cut(self) -> None:
        """Close all connections, as a failing network would; held requests are gone."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.close()

    def refuse(self) -> None:
        """Cut, and turn new connections away until `accept`."""
        self._is_refusing = True
        self.cut()

    def accept(self) -> None:
        self._is_refusing = False

    def close(self) -> None:
        self._closed.set()
        for listener in self._listeners.values():
            # A blocked accept() does not notice a close, but it does notice a shutdown.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(_WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self, upstream: tuple[str, int], listener: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self._is_refusing:
                client.close()
                continue
            try:
                broker = socket.create_connection(upstream, timeout=5)
            except OSError:
                client.close()
                continue
            self._start(_Link(self, client, broker))

    def _start(self, link: _Link) -> None:
        # Whoever finds a link here may close it, and only what has begun can be ended.
        with self._lock:
            link.start()
            self._links = [each for each in self._links if not each.is_over]
            self._links.append(link)
        if self._closed.is_set():
            link.close()

    def _rule_for(self, frame: Frame, side: Side, send: Callable[[], None]) -> Rule | None:
        with self._lock:
            rules = tuple(self._rules)
        return next((rule for rule in rules if rule.takes(frame, side, send)), None)

    def _count(self, api: int) -> None:
        with self._lock:
            self._seen[api] += 1

    def _readdressed(self, frame: Frame) -> bytes:
        body = frame.body
        if frame.api in _NAMES_BROKERS:
            for theirs, ours in self._renamed:
                body = body.replace(theirs, ours)
        return body


class _Link:
    """One connection of a client and the one to the broker that belongs to it."""

    def __init__(self, proxy: FrameProxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self._client, self._broker = client, broker
        self._locks = {client: threading.Lock(), broker: threading.Lock()}
        self._apis: dict[int, int] = {}
        self._holds: list[Rule] = []
        self._over = threading.Event()
        for end in (client, broker):
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._threads = [
            threading.Thread(target=self._pump_requests, name="frame-proxy-requests", daemon=True),
            threading.Thread(target=self._pump_responses, name="frame-proxy-responses", daemon=True),
        ]

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._over.set()
        for end in (self._client, self._broker):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_WAIT_S)
        self._client.close()
        self._broker.close()

    def _pump_requests(self) -> None:
        for body in _frames(self._client):
            api, correlation = struct.unpack_from(">hxxi", body)
            self._apis[correlation] = api
            self._proxy._count(api)
            self._pass_on(Frame(api, body), Side.REQUEST, self._broker)
        # The client has gone. What is held for it may still be released, so the way to the broker stays open.
        if not any(rule.is_holding for rule in self._holds):
            self._hang_up()

    def _pump_responses(self) -> None:
        for body in _frames(self._broker):
            (correlation,) = struct.unpack_from(">i", body)
            frame = Frame(self._apis.pop(correlation, -1), body)
            self._pass_on(Frame(frame.api, self._proxy._readdressed(frame)), Side.RESPONSE, self._client)
        self._hang_up()

    def _pass_on(self, frame: Frame, side: Side, to: socket.socket) -> None:
        def send() -> None:
            # The other end may have gone meanwhile; then there is nobody to tell.
            with suppress(OSError), self._locks[to]:
                to.sendall(struct.pack(">i", len(frame.body)) + frame.body)

        rule = self._proxy._rule_for(frame, side, send)
        if rule is None:
            send()
        elif rule.deed is Deed.HOLD:
            self._holds.append(rule)
        elif rule.deed is Deed.DELAY:
            self._over.wait(rule.delay_s)
            send()

    def _hang_up(self) -> None:
        self._over.set()
        for end in (self._client, self._broker):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _frames(source: socket.socket) -> Iterator[bytes]:
    """The frames that arrive, until the other side ends."""
    with suppress(OSError), source.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            size = struct.unpack(">i", head)[0]
            body = stream.read(size)
            if len(body) < size:
                return
            yield body


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{text!r} is no broker address", next_step='give "host:port", or several with commas between')
    return host, int(port)


def _wire_address(address: tuple[str, int]) -> bytes:
    """Host and port as they stand in a response: the string's bytes, then the port as an INT32."""
    return address[0].encode() + struct.pack(">i", address[1])
