"""Who works on the pile: threads for a `def`, tasks on one loop for an `async def`; as many as `concurrency` says."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Generic

from penstock.errors import InvariantBroken
from penstock.queue.calling import Call
from penstock.queue.pile import Piece, Pile, Seat, _now_ms


class Crew(ABC, Generic[Piece]):
    """It begins when it is given work, and ends when it is closed. The worker's thread drives it by `look`."""

    def __init__(self, call: Call, pile: Pile[Piece], *, concurrency: int) -> None:
        self._call, self._pile, self._concurrency = call, pile, concurrency
        self._seats: list[Seat[Piece]] = []
        self._bug: Exception | None = None
        """What ended one of the seats. No handler can do that."""
        self.give = self._give

    def look(self) -> None:
        """Notice who takes too long, and raise what ended a seat: the queue would wait for it for ever."""
        if self._bug is not None:
            raise self._bug
        self._pile.times.report()
        if self._pile.manner.time_limit_ms is None:
            return
        now_ms = _now_ms()
        for seat in list(self._seats):
            piece = seat.current
            if piece is None or now_ms < self._pile.deadline_ms(seat, piece):
                continue
            if self._pile.over_time(seat, piece):
                self._give_up(seat, piece)

    def stop_beginning(self) -> None:
        """What is being worked on goes on; all else is given back."""
        self._pile.is_closing = True
        self._pile.empty()
        self._wake(self._concurrency)

    def close(self) -> None:
        self.stop_beginning()

    def _give(self, hand: Any) -> None:
        self._wake(self._pile.give(hand))

    def _new_seat(self) -> Seat[Piece]:
        seat: Seat[Piece] = Seat(self._pile.tell, self._pile.times.note)
        self._seats.append(seat)
        return seat

    def _ended_by(self, bug: BaseException) -> None:
        """The worker's thread raises it."""
        if isinstance(bug, Exception):
            self._bug = bug
            return
        self._bug = InvariantBroken(
            f"what calls handler {self._call.name} was ended by {type(bug).__name__}",
            next_step="please report it, with the log",
        )
        self._bug.__cause__ = bug

    @abstractmethod
    def _wake(self, count: int) -> None:
        """There is work for so many."""

    @abstractmethod
    def _give_up(self, seat: Seat[Piece], piece: Piece) -> None:
        """The piece was taken away from there, over time. Its handler may still be at it."""


class ThreadCrew(Crew[Piece]):
    def __init__(self, call: Call, pile: Pile[Piece], *, concurrency: int) -> None:
        super().__init__(call, pile, concurrency=concurrency)
        self._work = threading.Condition()
        for _ in range(concurrency):
            self._open_seat()

    def look(self) -> None:
        super().look()
        for seat in list(self._seats):
            if (piece := seat.late) is not None and not seat.is_given_up:
                self._give_up(seat, piece)

    def _open_seat(self) -> None:
        seat = self._new_seat()
        threading.Thread(target=self._run, args=(seat,), name=f"penstock-{self._call.name}", daemon=True).start()

    def _run(self, seat: Seat[Piece]) -> None:
        try:
            self._sit(seat)
        except BaseException as bug:  # noqa: BLE001 - no seat ends silently
            self._ended_by(bug)
        finally:
            self._seats.remove(seat)

    def _sit(self, seat: Seat[Piece]) -> None:
        pile, take, done = self._pile, self._pile.take, self._pile.done
        function, arguments = self._call.function, self._call.arguments
        while not seat.is_given_up:
            piece = take(seat)
            if piece is None:
                seat.flush()
                if not self._rest():
                    break
                continue
            try:
                answer = function(*arguments(piece))
            except BaseException as failure:  # noqa: BLE001 - whatever a handler raises, this thread goes on
                pile.failed(seat, piece, failure)
            else:
                done(seat, piece, answer)
        seat.flush()

    def _rest(self) -> bool:
        with self._work:
            while not len(self._pile) and not self._pile.is_closing:
                self._work.wait()
        return not self._pile.is_closing

    def _wake(self, count: int) -> None:
        with self._work:
            self._work.notify(count)

    def _give_up(self, seat: Seat[Piece], piece: Piece) -> None:
        """A thread cannot be ended: it is replaced, as soon as there are not too many of them."""
        if len(self._seats) < 2 * self._concurrency and self._pile.give_up(seat):
            self._open_seat()


class LoopCrew(Crew[Piece]):
    """All tasks on one loop, in a thread of its own."""

    def __init__(self, call: Call, pile: Pile[Piece], *, concurrency: int) -> None:
        super().__init__(call, pile, concurrency=concurrency)
        self._loop = asyncio.new_event_loop()
        self._sleepers: deque[asyncio.Future[None]] = deque()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._thread = threading.Thread(target=self._run, name=f"penstock-{call.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._run_all())
        except BaseException as bug:  # noqa: BLE001 - no seat ends silently
            self._ended_by(bug)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _run_all(self) -> None:
        seats = [self._new_seat() for _ in range(self._concurrency)]
        self._tasks = {id(seat): asyncio.ensure_future(self._sit(seat)) for seat in seats}
        await asyncio.gather(*self._tasks.values())

    async def _sit(self, seat: Seat[Piece]) -> None:
        pile, function, arguments = self._pile, self._call.function, self._call.arguments
        while True:
            piece = pile.take(seat)
            if piece is None:
                seat.flush()
                if pile.is_closing:
                    return
                sleeper = self._loop.create_future()
                self._sleepers.append(sleeper)
                await sleeper
                continue
            try:
                answer = await function(*arguments(piece))
            except asyncio.CancelledError as failure:
                _forgive_cancelling()
                pile.failed(seat, piece, failure)
            except BaseException as failure:  # noqa: BLE001 - whatever a handler raises, this task goes on
                pile.failed(seat, piece, failure)
            else:
                pile.done(seat, piece, answer)

    def _wake(self, count: int) -> None:
        self._call_in_loop(lambda: self._wake_sleepers(count))

    def _wake_sleepers(self, count: int) -> None:
        while self._sleepers and count > 0:
            sleeper = self._sleepers.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                count -= 1

    def _give_up(self, seat: Seat[Piece], piece: Piece) -> None:
        """A task can be ended: its handler is cancelled, and the seat goes on with the next piece."""
        self._call_in_loop(lambda: self._cancel(seat, piece))

    def _cancel(self, seat: Seat[Piece], piece: Piece) -> None:
        # If the handler has returned meanwhile, the task is at rest, or at another piece.
        if seat.late is piece:
            self._tasks[id(seat)].cancel()

    def _call_in_loop(self, function: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            # It is closed: nobody sits there any more.
            return

    def close(self) -> None:
        super().close()
        self._thread.join(1)


def _forgive_cancelling() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def crew_of(call: Call, pile: Pile[Any], *, concurrency: int) -> Crew[Any]:
    kind = LoopCrew if call.is_async else ThreadCrew
    return kind(call, pile, concurrency=concurrency)
