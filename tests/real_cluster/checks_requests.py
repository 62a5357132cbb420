"""The API server for tests and a real one get the same requests, and must give the same answers.

Each difference must have a cause, which is a row of docs/dra-fixtures.md. `SEED=7 make cluster PART=requests` repeats
the run with that seed.
"""

import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from attrs import define, field
from devicecore_tools.testing.api_server import LocalApiServer

from tests.real_cluster.client import Client
from tests.real_cluster.control_plane import ControlPlane, say
from tests.real_cluster.differences import TIME, UID, Difference, differences
from tests.real_cluster.known import CAUSES, Answered, cause_of
from tests.real_cluster.requests import MERGE, NAMES, Asked, requests

Json = Any

GUIDE = (Path(__file__).parents[2] / "docs" / "dra-fixtures.md").read_text(encoding="utf-8")
COUNT = int(os.environ.get("REQUESTS") or 2000)
SEED = int(os.environ.get("SEED") or secrets.randbelow(10**6))
# Admission plugins that the API server for tests does not imitate.
_OFF = "ServiceAccount,DefaultTolerationSeconds,Priority"
_SHOWN = 100  # a failure shows at most this many kinds of differences
_REPLACED = (
    (TIME, "TIME"),
    (UID, "UID"),
    (re.compile(r"\bg-\w{5}\b"), "g-GENERATED"),
    (re.compile(r"(ResourceVersion in (?:the precondition|record)) \(\d+\)"), r"\1 (SOME)"),
)


@define
class Server:
    """One of the servers, and the object versions and UIDs that it has returned."""

    client: Client
    _last: dict[str, Json] = field(factory=dict)
    _first: dict[str, Json] = field(factory=dict)
    _lists: dict[str, Json] = field(factory=dict)

    def ask(self, asked: Asked) -> tuple[int, Json]:
        """Send a request, and return the status and the response, without values that always differ between servers."""
        body = asked.body if isinstance(asked.body, bytes) else self._filled(asked.where, asked.body)
        query = self._filled(asked.where, dict(asked.query))
        answer = self.client.raw(asked.method, asked.where, body, asked.kind, query)
        if "watch" in asked.query and answer.status_code == httpx2.codes.OK:
            return answer.status_code, [_plain(json.loads(line)) for line in answer.text.splitlines()]
        try:
            parsed = answer.json()
        except ValueError:
            return answer.status_code, answer.text
        if "limit" in query and answer.status_code == httpx2.codes.OK:
            self._add_pages(asked.where, query, parsed)
        self._note(asked, parsed)
        return answer.status_code, _plain(parsed)

    def _add_pages(self, where: str, query: Json, listed: Json) -> None:
        """Add all other pages to the first page of a list. A server that ignores `limit` sends no other pages."""
        listed["metadata"].pop("remainingItemCount", None)
        while token := listed["metadata"].pop("continue", ""):
            page = self.client.send("GET", where, query={**query, "continue": token})
            listed["items"] += page["items"]
            listed["metadata"] |= {"continue": page["metadata"].get("continue", "")}

    def forget(self, where: str) -> None:
        """Remove the objects that a request is about, and make later watches start after their removal."""
        where = where.removesuffix("/status").removesuffix("/none")
        above, _, last = where.rpartition("/")
        every, names = (above, [last]) if last in NAMES else (where, NAMES)
        for name in names:
            self._remove(f"{every}/{name}")
        self._watch_from_now(every)

    def _remove(self, place: str) -> None:
        self.client.raw("PATCH", place, {"metadata": {"finalizers": None}}, MERGE)
        self.client.raw("DELETE", place, {"gracePeriodSeconds": 0})
        self._last.pop(place, None)
        self._first.pop(place, None)

    def _watch_from_now(self, every: str) -> None:
        """Make later watches of a list start after everything that has happened so far."""
        listed = self.client.raw("GET", every)
        if listed.status_code == httpx2.codes.OK:
            mark = listed.json()["metadata"]["resourceVersion"]
            self._lists.setdefault(every, {})["resourceVersion"] = mark

    def _note(self, asked: Asked, answer: Json) -> None:
        if not isinstance(answer, dict) or answer.get("kind") == "Status":
            return
        if "items" in answer:
            self._lists[asked.where] = answer["metadata"]
        elif "metadata" in answer and not asked.query.get("dryRun"):
            place = asked.where.removesuffix("/status")
            place = f"{place}/{answer['metadata'].get('name')}" if asked.method == "POST" else place
            self._last[place] = answer["metadata"]
            self._first.setdefault(place, answer["metadata"])

    def _filled(self, where: str, body: Json) -> Json:
        """Return the body with placeholders such as `$version` replaced by the server's values."""
        place = where.removesuffix("/status")
        last, first = self._last.get(place, {}), self._first.get(place, {})
        known = {
            '"$version"': last.get("resourceVersion", "1"),
            '"$first"': first.get("resourceVersion", "1"),
            '"$uid"': last.get("uid", "00000000-0000-4000-8000-000000000009"),
            '"$mark"': self._lists.get(where, {}).get("resourceVersion", "0"),
        }
        text = json.dumps(body)
        for word, value in known.items():
            text = text.replace(word, json.dumps(value))
        return json.loads(text)


def _plain(document: Json) -> Json:
    text = json.dumps(document)
    for pattern, word in _REPLACED:
        text = pattern.sub(word, text)
    return _without_versions(json.loads(text))


def _without_versions(value: Json) -> Json:
    if isinstance(value, list):
        return [_without_versions(one) for one in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _without_versions(one) for key, one in value.items()}
    for name in ("resourceVersion", "continue"):
        if plain.get(name):
            plain[name] = "SOME"
    if isinstance(plain.get("managedFields"), list):
        plain["managedFields"] = {
            " ".join(filter(None, (one["manager"], one["operation"], one.get("subresource")))): one
            for one in plain["managedFields"]
        }
    return plain


def test_every_cause_is_a_row_of_the_page() -> None:
    assert not {cause for cause in CAUSES if f"\n| {cause} |" not in GUIDE}


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    arguments = {"kube-apiserver": [f"--disable-admission-plugins={_OFF}"]}
    with (
        ControlPlane(parts=("etcd", "kube-apiserver"), arguments=arguments) as plane,
        LocalApiServer() as local,
        httpx2.Client(base_url=local.url, timeout=30.0, trust_env=False) as http,
    ):
        yield Server(Client(http)), Server(plane.admin)


def test_both_servers_answer_the_same(servers: tuple[Server, Server]) -> None:
    say(f"{COUNT} requests from seed {SEED}")
    known: Counter[str] = Counter()
    unknown: dict[str, list[str]] = {}
    same = 0
    for number, asked in enumerate(requests(SEED, COUNT), start=1):
        first, second = ({"code": code, "answer": answer} for code, answer in (one.ask(asked) for one in servers))
        found = list(differences(first, second))
        same += not found
        for one in found:
            if cause := cause_of(Answered(asked, one, first, second)):
                known[cause] += 1
            else:
                unknown.setdefault(_alike(asked, one), []).append(f"{number}. {asked}\n      {one}"[:1500])
        if found:  # so that this difference causes no others later
            for server in servers:
                server.forget(asked.where)
        if number % 500 == 0:
            say(f"{number} requests, {same} answers are the same, {len(unknown)} kinds of unknown differences")
    for cause, count in known.most_common():
        say(f"{count} differences known: {cause}")
    say(f"{COUNT} requests, {same} answers the same in every field, {sum(known.values())} known differences")
    shown = [f"{len(alike)} times: {alike[0]}" for alike in sorted(unknown.values(), key=len, reverse=True)]
    if unknown:
        told = "\n".join(shown[:_SHOWN])
        pytest.fail(f"seed {SEED}, {len(shown)} kinds of differences, with an example of each:\n{told}", pytrace=False)


def _alike(asked: Asked, one: Difference) -> str:
    """Return what differences with the same cause share: the verb, the path, and the beginnings of the values."""
    where = re.sub(r"\[[^\]]*\]", "[]", one.path)
    values = re.sub(r"[^a-zA-Z]+", " ", str(one)[len(one.path) :])[:40]
    return f"{asked.method} {asked.kind if asked.method == 'PATCH' else ''} {where} {values}"
