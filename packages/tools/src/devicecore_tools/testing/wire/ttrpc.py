"""Messages of ttRPC. The stub next to this file lists the messages."""

from devicecore.wire.pool import contents

globals().update(contents("ttrpc.proto", "devicecore_tools.testing.wire"))
