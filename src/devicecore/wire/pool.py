"""Message classes from the checked-in descriptors, in a separate pool.

Law: protobuf's default pool is not changed.
"""

import pkgutil
from functools import cache

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass


@cache
def _pool(package: str) -> DescriptorPool:
    # The default pool refuses a second `v1beta1.Device` or `api.proto`, and plugins may contain their own copies.
    pool = DescriptorPool()
    blob = pkgutil.get_data(package, "descriptors.binpb")  # importlib.resources would also import tempfile
    assert blob is not None, "this is an ordinary package, in which get_data finds the file"  # noqa: S101 - for mypy
    for file in FileDescriptorSet.FromString(blob).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def contents(
    proto: str, package: str = "devicecore.wire"
) -> dict[str, type[Message] | FileDescriptor | EnumTypeWrapper | int]:
    """Return what the module that protoc generates for `proto` contains: messages and enums by name, and `DESCRIPTOR`.

    `package` is the package that contains the file `descriptors.binpb`.
    """
    descriptor = _pool(package).FindFileByName(proto)
    messages = {name: GetMessageClass(message) for name, message in descriptor.message_types_by_name.items()}
    enums = {name: EnumTypeWrapper(enum) for name, enum in descriptor.enum_types_by_name.items()}
    numbers = {name: number for enum in enums.values() for name, number in enum.items()}
    return {"DESCRIPTOR": descriptor, **messages, **enums, **numbers}
