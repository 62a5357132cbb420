"""Messages of a DRA driver's API v1beta1; the stub next to this file lists them."""

from devicecore.wire.pool import contents

globals().update(contents("dra_v1beta1.proto"))
