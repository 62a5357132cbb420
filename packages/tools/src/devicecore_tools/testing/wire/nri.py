"""Messages of the Node Resource Interface. The stub next to this file lists the messages."""

from devicecore.wire.pool import contents

globals().update(contents("nri.proto", "devicecore_tools.testing.wire"))
