"""The claims of containers as messages of the pod-resources API.

Law: drivers' answers are passed on unchanged. This module is not loaded before the first claim is listed.
"""

from collections.abc import Iterable

from devicecore.domain.dra.devices import DynamicResource
from devicecore.system.arguments import checks_arguments
from devicecore.wire import podresources


@checks_arguments()
def to_dynamic_resources(claims: Iterable[DynamicResource]) -> list[podresources.DynamicResource]:
    """Return a message for each claim, with all its devices (kubelet: `getDynamicResources`, kubelet-dra.md 12)."""
    return [
        podresources.DynamicResource(
            claim_name=found.claim.name,
            claim_namespace=found.claim.namespace,
            claim_resources=[
                podresources.ClaimResource(
                    driver_name=driver,
                    pool_name=device.pool,
                    device_name=device.name,
                    share_id=device.share_id,
                    cdi_devices=[podresources.CDIDevice(name=name) for name in device.cdi_ids or ()],
                )
                for driver, device in found.devices
            ],
        )
        for found in claims
    ]
