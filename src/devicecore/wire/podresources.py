"""Messages of the pod-resources API v1; the stub next to this file lists them."""

from devicecore.wire.pool import contents

globals().update(contents("podresources.proto"))
