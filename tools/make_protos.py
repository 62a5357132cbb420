"""Write `wire/descriptors.binpb` and the stubs beside the message modules anew from `wire/proto/*.proto`.

Run it with grpcio-tools installed: `python tools/make_protos.py [DIRECTORY]`.
"""

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

WIRE = Path(__file__).parent.parent / "src" / "devicecore" / "wire"


def make_protos(target: Path) -> None:
    """Write the blob and the stubs into `target`."""
    protos = sorted(path.name for path in (WIRE / "proto").glob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        status = protoc.main(
            [
                "protoc",
                f"--proto_path={WIRE / 'proto'}",
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
            stub = stub.replace("_Mapping]", "_Mapping[str, object]]")  # a bare generic is an error to mypy --strict
            (target / proto.replace(".proto", ".pyi")).write_text(stub)


if __name__ == "__main__":
    make_protos(Path(sys.argv[1]) if sys.argv[1:] else WIRE)
