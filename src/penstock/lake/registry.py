"""The schema registry: what was written under which number. A number never changes its schema, so answers are kept."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from penstock.errors import AccessDenied, ConfigError, NotFound, TransientError
from penstock.values import Duration

ANSWER_BYTES_MAX = 16 * 1024 * 1024
REFERENCES_MAX = 100

_OK, _NOT_FOUND = 200, 404
_NOT_LET_IN = (401, 403)


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema as the registry has it."""

    text: str
    kind: str = "AVRO"
    references: tuple[str, ...] = ()
    """The schemas that it refers to, each before those that need it."""


class Registry:
    """A client of the registry's HTTP interface, for reading only."""

    def __init__(self, address: str, *, user: str = "", password: str = "", timeout: Duration) -> None:
        self._address = urlsplit(address)
        self._shown = f"{self._address.scheme}://{self._address.hostname}:{self._address.port or self._default_port()}"
        self._timeout_s = timeout.seconds
        self._login = base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""
        self._by_id: dict[int, Registered | None] = {}

    def by_id(self, schema_id: int) -> Registered | None:
        """The schema of this number; None: the registry does not know it.

        Raises TransientError when the registry does not answer, AccessDenied when it does not let us in.
        """
        if schema_id not in self._by_id:
            answer = self._get(f"/schemas/ids/{schema_id}")
            self._by_id[schema_id] = None if answer is None else self._registered(answer)
        return self._by_id[schema_id]

    def latest(self, subject: str) -> Registered:
        """The newest schema of a subject.

        Raises NotFound, and what `by_id` raises.
        """
        answer = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest")
        if answer is None:
            raise NotFound(
                f"the registry {self._shown} has no subject {subject}",
                next_step="give registry_subject, or the schema as schema_file",
            )
        return self._registered(answer)

    def _registered(self, answer: dict[str, Any]) -> Registered:
        references: dict[tuple[str, int], str] = {}
        self._collect(answer, references)
        return Registered(self._text(answer), str(answer.get("schemaType", "AVRO")), tuple(references.values()))

    def _collect(self, answer: dict[str, Any], found: dict[tuple[str, int], str]) -> None:
        """What a schema refers to, and what that refers to, the innermost first."""
        for one in answer.get("references") or ():
            match one:
                case {"subject": str(subject), "version": int(version)} if (subject, version) not in found:
                    if len(found) >= REFERENCES_MAX:
                        raise self._nonsense(f"a schema with more than {REFERENCES_MAX} references")
                    referred = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}")
                    if referred is None:
                        raise self._nonsense(f"a reference to {subject} version {version}, which is not there")
                    found[(subject, version)] = ""
                    self._collect(referred, found)
                    found[(subject, version)] = found.pop((subject, version)) or self._text(referred)

    def _text(self, answer: dict[str, Any]) -> str:
        match answer:
            case {"schema": str(text)}:
                return text
        raise self._nonsense("an answer without a schema")

    def _get(self, path: str) -> dict[str, Any] | None:
        """The answer; None: there is nothing there. Redirects are not followed: the password is for this host."""
        connection = self._connection()
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self._login:
            headers["Authorization"] = f"Basic {self._login}"
        try:
            connection.request("GET", self._address.path.rstrip("/") + path, headers=headers)
            response = connection.getresponse()
            status, body = response.status, response.read(ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as failure:
            raise TransientError(
                f"the registry {self._shown} does not answer: {failure!r}",
                next_step="see that it runs, and that `registry` is its address",
            ) from failure
        finally:
            connection.close()
        return self._answer(status, body, path)

    def _answer(self, status: int, body: bytes, path: str) -> dict[str, Any] | None:
        if status == _NOT_FOUND:
            return None
        if status in _NOT_LET_IN:
            raise AccessDenied(
                f"the registry {self._shown} answered {status} to {path}",
                next_step="check registry_user and registry_password",
            )
        if status != _OK:
            raise TransientError(f"the registry {self._shown} answered {status} to {path}", next_step="see its log")
        if len(body) > ANSWER_BYTES_MAX:
            raise self._nonsense(f"more than {ANSWER_BYTES_MAX} bytes")
        try:
            answer = json.loads(body)
        except ValueError:
            raise self._nonsense("no JSON") from None
        if not isinstance(answer, dict):
            raise self._nonsense("JSON that is no object")
        return answer

    def _nonsense(self, what: str) -> TransientError:
        return TransientError(
            f"the registry {self._shown} answered with {what}", next_step="see that `registry` is its address"
        )

    def _connection(self) -> http.client.HTTPConnection:
        host = self._address.hostname
        if not host:
            raise ConfigError(f"registry {self._shown} names no host", next_step='write it as "http://host:8081"')
        if self._address.scheme == "https":
            return http.client.HTTPSConnection(
                host, self._address.port, timeout=self._timeout_s, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(host, self._address.port, timeout=self._timeout_s)

    def _default_port(self) -> int:
        return 443 if self._address.scheme == "https" else 80
