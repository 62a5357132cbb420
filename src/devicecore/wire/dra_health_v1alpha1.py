"""Messages of a DRA driver's health API v1alpha1; the stub next to this file lists them."""

from devicecore.wire.pool import contents

globals().update(contents("dra_health_v1alpha1.proto"))
