"""Work queues on plain Kafka topics: single acks, leases, retries in place, dead letters.

`records.py` facts · `state.py` replay, over `spans.py` (a value for every offset), `cells.py` (what is known of one),
`leases.py` and `ranges.py` · `ndjson.py` and `history.py` for those who want to know why · `look.py` and `peek.py` for
those who want to see · `supervise.py` keeps the processes of `penstock work` alive.
"""
