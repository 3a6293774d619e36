"""Work queues on plain Kafka topics: single acks, leases, retries in place, dead letters.

`records.py` facts · `state.py` replay, over `spans.py` (a value for every offset), `cells.py` (what is known of one),
`leases.py` and `ranges.py` · `ndjson.py` for those who want to know why · `look.py` and `peek.py` for
those who want to see · `supervise.py` keeps the processes of `penstock work` alive.

`worker.py` moves: `reading.py` (with `desk.py`, `gaps.py`, `order.py`, and the `clerk.py` who reads again and copies),
`taking.py`, `telling.py` · `pile.py`, `batch_pile.py` and `crew.py` call the handlers of `calling.py`, and `retry.py`
says what a failure means · `running.py` and `upkeep.py` are a queue at work in a process · `queue.py`, `message.py`,
`receiving.py` and `sending.py` are what users hold.
"""
