"""Messages of the device plugin API v1beta1; the stub next to this file lists them."""

from devicecore.wire.pool import contents

globals().update(contents("deviceplugin.proto"))
