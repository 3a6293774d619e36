"""How members are called that were given no name: `<host>-<ordinal>`, the ordinal being a lock of the group.

Names live in a group of their own, which no group of users can be called: a pause of the group leaves them alone, and
who looks at the group sees its work only.
"""

from __future__ import annotations

import re
import socket

from penstock.claims.records import Slot


def this_host() -> str:
    """The host's name, of the characters that names may have."""
    return re.sub(r"[^a-zA-Z0-9._-]", "-", socket.gethostname())[:80] or "host"


def ordinal_name(host: str, ordinal: int) -> str:
    return f"{host}-{ordinal}"


def name_slot(group: str, client: str) -> Slot:
    """The lock that a member holds while it is called so."""
    return Slot(f"{group}:clients", client)
