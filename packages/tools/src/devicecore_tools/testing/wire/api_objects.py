"""Messages for Kubernetes API objects. The stub next to this file lists the messages."""

from devicecore.wire.pool import contents

globals().update(contents("api_objects.proto", "devicecore_tools.testing.wire"))
