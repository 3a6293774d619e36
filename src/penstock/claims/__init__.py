"""Coordination through Kafka alone: members share partitions and named locks, with fencing tokens.

`records.py` facts · `state.py`, `intervals.py` replay · `decide.py` choices · `member.py` claims, keeps, gives back ·
`running.py` a member in its own thread · `consume.py` and `group.py` shared consumption · `lock.py` named locks ·
`job.py` once in every period · `fenced.py` what refuses a former holder.
"""
