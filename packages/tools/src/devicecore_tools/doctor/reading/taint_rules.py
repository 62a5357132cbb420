"""The taints that DeviceTaintRules add to published devices.

Law: a rule that selects devices in an unknown way, as rules from before Kubernetes 1.35 do, is refused.
"""

from collections.abc import Iterable

from devicecore.domain.allocation import DeviceKey
from devicecore.domain.allocation.model import Taint
from devicecore.domain.allocation.reading import taint_of
from devicecore.domain.documents import Value

TaintRule = tuple[tuple[str, str, str] | None, Taint]
"""Driver, pool and device of a rule, and its taint. `""` matches any name; None means that no device is selected."""


def rules_in(document: Value) -> tuple[TaintRule, ...]:
    """Return the rules of a list. Raises DocumentError if the document is not a complete list of rules."""
    # imported only here, because commands that read claims do not need it
    from devicecore_tools.doctor.reading.objects import items_of

    return tuple(map(rule_of, items_of(document, "DeviceTaintRules", "DeviceTaintRuleList")))


def rule_of(rule: Value) -> TaintRule:
    """Return the rule in an object. Raises DocumentError if the rule selects devices as before Kubernetes 1.35."""
    selector = rule["spec"]["deviceSelector"]
    for name in ("deviceClassName", "selectors"):
        if selector[name].data:
            selector[name].refuse(
                "expected a rule of Kubernetes 1.35 or later, which selects by driver, pool or device"
            )
    driver, pool, device = (selector[name].text("") for name in ("driver", "pool", "device"))
    selected = None if selector.data is None else (driver, pool, device)
    return selected, taint_of(rule["spec"]["taint"])


def added_taints(device: DeviceKey, rules: Iterable[TaintRule]) -> list[Taint]:
    """Return the taints that rules add to a device."""
    return [
        taint
        for selected, taint in rules
        if selected is not None and all(want in ("", has) for want, has in zip(selected, device, strict=True))
    ]
