"""Generate `descriptors.binpb`, and the stubs next to the message modules of two packages, from `proto/*.proto`.

The program needs grpcio-tools: `python tools/make_protos.py [DIRECTORY]`.
"""

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "devicecore": ROOT / "src" / "devicecore" / "wire",
    "devicecore_tools": ROOT / "packages" / "tools" / "src" / "devicecore_tools" / "testing" / "wire",
}


def make_protos(wire: Path, target: Path) -> None:
    """Write the descriptors and stubs for the `.proto` files below `wire` into `target`."""
    protos = sorted(path.name for path in (wire / "proto").glob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        status = protoc.main(
            [
                "protoc",
                f"--proto_path={wire / 'proto'}",
                f"--proto_path={files('grpc_tools') / '_proto'}",
                f"--descriptor_set_out={target / 'descriptors.binpb'}",
                f"--pyi_out={scratch}",
                *protos,
            ]
        )
        if status:
            sys.exit(status)
        for proto in protos:
            stub = Path(scratch, proto.replace(".proto", "_pb2.pyi")).read_text()
            stub = stub.replace("_Mapping]", "_Mapping[str, object]]")  # mypy --strict rejects a bare generic
            (target / proto.replace(".proto", ".pyi")).write_text(stub)


if __name__ == "__main__":
    for name, wire in PACKAGES.items():
        target = Path(sys.argv[1], name) if sys.argv[1:] else wire
        target.mkdir(parents=True, exist_ok=True)
        make_protos(wire, target)
