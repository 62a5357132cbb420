"""The two state files: how they are written, and how damaged ones are read."""

import base64
import json
import zlib
from random import Random

from attrs import evolve

from devicecore.domain.checkpoint import ExtraFields, checksum, decode, dump, encode, examine
from devicecore.domain.checkpoint.encoding import NEWEST
from devicecore.domain.dra import state_file
from devicecore.domain.errors import MalformedCheckpointError
from tests.oracle.asking import AGREED, Json, Oracle, Verdict, differences
from tests.unit.test_checkpoint_vectors import data_of
from tests.unit.test_dra_state_vectors import claims_of, entry_of, recorded_claims

TEXTS = (
    *("gpu-0", "gpu-1", "nic-00", "", " ", "a,b", "x y", "<&>", 'q"uo\\te', "tab\t", "\x7f", "\x00", "\u2028"),
    *("ä", "日本", "😀", "map[", "]", "[a b]", "0000:3b:00.0", "GPU-9b341c59", "pod-1", "example.com/gpu", "main"),
)
TOKENS = (
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"null",
    b"true",
    b"1",
    b"-1",
    b"1.5",
    b'"a"',
    b"{}",
    b"[]",
    b"\\u0041",
)
BYTES = (b"\xff", b"\xc0", b"\xed\xa0\x80", b"\\ud800", b"\\", b"\x01", b" ", b"\n", b"\xe2\x80\xa8")


def text_of(encoded: str) -> str:
    """Return the text of a file that is encoded in base64."""
    return base64.b64decode(encoded).decode()


def _text(random: Random) -> str:
    return random.choice(TEXTS) + random.choice(("", "", str(random.randint(0, 20))))


def _texts(random: Random) -> Json:
    return random.choice((None, [], *[[_text(random) for _ in range(random.randint(1, 4))]] * 4))


def checkpoint(random: Random) -> Json:
    """Return random data for a checkpoint."""
    entries = [
        {
            "podUID": _text(random),
            "containerName": _text(random),
            "resourceName": _text(random),
            "deviceIDs": random.choice((None, *[_by_node(random)] * 5)),
            "allocResp": random.choice(
                (None, *[base64.b64encode(random.randbytes(random.randint(0, 40))).decode()] * 4)
            ),
        }
        for _ in range(random.randint(0, 4))
    ]
    registered = {_text(random): _texts(random) for _ in range(random.randint(0, 3))}
    data = {
        "entries": random.choice((None, *[entries] * 9)),
        "registeredDevices": random.choice((None, *[registered] * 9)),
    }
    return {"data": data}


def _by_node(random: Random) -> Json:
    nodes = random.sample((-1, 0, 1, 2, 3, 9, 10, 11, 100), random.randint(0, 3))
    return {str(node): _texts(random) for node in nodes}


def judge_checkpoint(case: Json, oracle: Oracle) -> Verdict:
    """Compare the written bytes, the hashed text, and the checksum."""
    data = data_of(case["data"])
    ours = {
        "file_b64": base64.b64encode(encode(data)).decode(),
        "hashed": dump(data).decode(),
        "checksum": checksum(data),
    }
    lines = list(differences(ours, oracle.ask("checkpoint-encode", case)))
    return Verdict(None, lines) if lines else AGREED


def claims(random: Random) -> Json:
    """Return random claims with different names for a state file of the DRA manager."""
    all_claims = [
        {
            "ClaimUID": _text(random),
            "ClaimName": f"claim-{number}",
            "Namespace": _text(random),
            "PodUIDs": random.choice((None, sorted({_text(random) for _ in range(random.randint(0, 3))}))),
            "DriverState": random.choice((None, *[_drivers(random)] * 5)),
        }
        for number in range(random.randint(0, 3))
    ]
    return {"claims": random.choice((None, *[all_claims] * 9))}


def _drivers(random: Random) -> Json:
    return {
        _text(random): {
            "Devices": random.choice((None, *[[_device(random) for _ in range(random.randint(0, 3))]] * 5)),
        }
        for _ in range(random.randint(0, 2))
    }


def _device(random: Random) -> Json:
    return {
        "PoolName": _text(random),
        "DeviceName": _text(random),
        "ShareID": random.choice((None, _text(random))),
        "RequestNames": _texts(random),
        "CDIDeviceIDs": _texts(random),
    }


def judge_claims(case: Json, oracle: Oracle) -> Verdict:
    """Compare the bytes of the written file."""
    entries = None if case["claims"] is None else [entry_of(one) for one in case["claims"]]
    ours = {"bytes": base64.b64encode(state_file.encode(entries)).decode()}
    lines = list(differences(ours, oracle.ask("claims-encode", case)))
    return Verdict(None, lines) if lines else AGREED


OLDEST = 0.04
"""The share of files in the format from before 1.11."""


def damaged_checkpoint(random: Random) -> Json:
    """Return a checkpoint, usually damaged, sometimes with a checksum that matches the damaged content."""
    data = data_of(checkpoint(random)["data"])
    file = encode(data, random.choice((NEWEST,) * 6 + (1,)))
    if random.random() < OLDEST:  # only the list of entries, as before 1.11
        file = json.dumps(json.loads(encode(data, 1))["Data"]["PodDeviceEntries"], ensure_ascii=False).encode()
    file = _damaged(random, file)
    if random.random() < 0.5:
        try:
            found = decode(file)
        except MalformedCheckpointError:
            pass
        else:
            file = file.replace(str(found.stored).encode(), str(found.computed).encode())
    return {"file_b64": base64.b64encode(file).decode()}


def damaged_claims(random: Random) -> Json:
    """Return a state file of the DRA manager, usually with damage in its inner or outer document."""
    case = claims(random)["claims"]
    entries = None if case is None else [entry_of(one) for one in case]
    file = state_file.encode(entries)
    if random.random() < 0.5:
        inside = _damaged(random, json.loads(file)["Data"].encode())
        text = json.dumps(inside.decode("utf-8", "replace"), ensure_ascii=random.random() < 0.5)
        sum_ = zlib.crc32(json.loads(text).encode())
        file = f'{{"Data":{text},"Checksum":{sum_}}}'.encode()
    else:
        file = _damaged(random, file)
    return {"bytes": base64.b64encode(file).decode()}


def _damaged(random: Random, file: bytes) -> bytes:
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        start = random.randint(0, len(file))
        match random.choice(("set", "drop", "cut", "token", "byte", "case", "double")):
            case "set":
                file = file[:start] + random.randbytes(1) + file[start + 1 :]
            case "drop":
                file = file[:start] + file[start + random.randint(1, 8) :]
            case "cut":
                file = random.choice((file[:start], file[start:]))
            case "token":
                place = random.choice([number for number, byte in enumerate(file) if byte in b'{}[],:"'] or [0])
                file = file[:place] + random.choice(TOKENS) + file[place + random.choice((0, 0, 1)) :]
            case "byte":
                file = file[:start] + random.choice(BYTES) + file[start:]
            case "case":
                file = file[:start] + file[start : start + 12].swapcase() + file[start + 12 :]
            case _:
                piece = file[start : start + random.randint(1, 60)]
                file = file[:start] + piece + file[start:]
    return file


def judge_damaged_checkpoint(case: Json, oracle: Oracle) -> Verdict:
    """Compare the verdicts, and the parsed content by writing it again.

    Today's kubelet does not accept a file in an older format (D23). For such a file, our result is compared with the
    result of older kubelets, which accepted the format.
    """
    theirs = oracle.ask("checkpoint-decode", case)
    found, data = examine(base64.b64decode(case["file_b64"]))
    ours: Json = {"verdict": found.verdict.value}
    if data is not None:
        ours |= {
            "stored": found.stored,
            "computed": found.computed,
            "entries": found.entries,
            "resources": found.resources,
            "again": json.loads(encode(evolve(data, extra=ExtraFields()))),
        }
    lines = list(differences(ours, theirs))
    if not lines:
        return AGREED
    if theirs["verdict"] != "ok" and found.format in {0, 1}:
        lines = list(differences(ours, oracle.ask("checkpoint-decode", {**case, "is_flat": True})))
        return Verdict(None if lines else "D23", lines)
    return Verdict(None, lines)


def judge_damaged_claims(case: Json, oracle: Oracle) -> Verdict:
    """Compare the verdicts and the parsed content."""
    blob = base64.b64decode(case["bytes"])
    theirs = oracle.ask("claims-decode", case)
    ours = state_file.judge(blob).verdict.value
    if ours != theirs["verdict"]:
        return Verdict(None, [f"ours {ours}, theirs {theirs['verdict']}: {theirs.get('error')}"])
    if ours == "ok" and claims_of(blob) != _by_name(theirs["claims"]):
        return Verdict(None, [f"ours {claims_of(blob)}", f"theirs {_by_name(theirs['claims'])}"])
    return AGREED


def _by_name(listed: Json) -> Json:
    """Return the claims that a kubelet keeps: of several claims with one name, only the last."""
    return recorded_claims(list({(one["Namespace"], one["ClaimName"]): one for one in listed}.values()))
