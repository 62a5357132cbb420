"""The names that the API server accepts, including resource names.

Law: only these functions decide what a valid name is. A name that one of these functions accepts is ASCII without
spaces, so it can be part of a path, a selector or a log line.
"""

import re

MAX_LABEL = 63
"""The maximum length of a DNS label."""

MAX_SUBDOMAIN = 253
"""The maximum length of a DNS subdomain."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_NUMBER, _BEFORE, _BUILD = "(0|[1-9][0-9]*)", "(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)", "[0-9A-Za-z-]+"
_VERSION = re.compile(rf"{_NUMBER}(\.{_NUMBER}){{2}}(-{_BEFORE}(\.{_BEFORE})*)?(\+{_BUILD}(\.{_BUILD})*)?")


def is_dns_label(text: str) -> bool:
    """Return whether `text` is a valid name for a container, namespace or device (Kubernetes: `IsDNS1123Label`)."""
    return len(text) <= MAX_LABEL and _LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str, limit: int = MAX_SUBDOMAIN) -> bool:
    """Return whether `text` is a valid name for a pod, node or driver (Kubernetes: `IsDNS1123Subdomain`)."""
    return len(text) <= limit and _SUBDOMAIN.fullmatch(text) is not None


def is_label_value(text: str) -> bool:
    """Return whether `text` is a valid value for a label or taint (Kubernetes: `IsValidLabelValue`)."""
    return not text or (len(text) <= MAX_LABEL and _QUALIFIED.fullmatch(text) is not None)


def is_qualified_name(text: str) -> bool:
    """Return whether `text` is `name` or `domain/name` (Kubernetes: `IsQualifiedName`)."""
    prefix, slash, name = text.rpartition("/")
    is_name = len(name) <= MAX_LABEL and _QUALIFIED.fullmatch(name) is not None
    return is_name and (not slash or is_dns_subdomain(prefix))


def is_semantic_version(text: str) -> bool:
    """Return whether `text` is a version as semver.org defines it, and so a valid version attribute of a device."""
    return _VERSION.fullmatch(text) is not None
