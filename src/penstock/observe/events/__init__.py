"""Everything that can happen, as frozen dataclasses: a file for each part of Penstock; by name, all of them from here.

Whoever wants to know subscribes; `logs.py` and `metrics.py` are the two listeners that ship with Penstock.
"""

# A list of names would have to be kept in step with all these files; whoever adds an event need not look here.
# ruff: noqa: F403

from penstock.observe.events.broker import *
from penstock.observe.events.claims import *
from penstock.observe.events.kafka import *
from penstock.observe.events.lake import *
from penstock.observe.events.ledger import *
from penstock.observe.events.processes import *
from penstock.observe.events.queue import *
from penstock.observe.events.telling import *
