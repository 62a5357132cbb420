"""Shows a report as metrics, for Prometheus' textfile collector.

Law: the text is valid for any content of the sources, because label values are bounded and escaped.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from devicecore.domain.text import foreign_text
from devicecore_tools.doctor.account.precedence import OwnerState
from devicecore_tools.doctor.findings.checks import CHECKS
from devicecore_tools.doctor.findings.report import FREE, NodeReport

_MAX_LABEL = 320  # in characters; a resource name has at most 317
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def metrics_text(report: NodeReport) -> str:
    """Return the metrics of a report, in Prometheus' text format."""
    devices = Counter(
        (row.resource, row.state.value) for row in {(row.resource, row.device): row for row in report.devices}.values()
    )
    free = Counter(row.resource for row in report.devices if row.owner == FREE and not row.is_held)
    found = Counter(finding.code for finding in report.findings)
    resources = sorted({row.resource for row in report.devices})
    return "".join(
        [
            *_metric(
                "devicecore_doctor_source_read",
                "Whether a source could be read.",
                {(("source", line.source.value),): int(line.was_read) for line in report.sources},
            ),
            *_metric(
                "devicecore_doctor_devices",
                "Devices by how certain their holders are.",
                {
                    (("resource_name", resource), ("state", state.value)): devices[resource, state.value]
                    for resource in resources
                    for state in OwnerState
                },
            ),
            *_metric(
                "devicecore_doctor_free_devices",
                "Healthy devices that no container holds. A device whose holder is unknown is not counted.",
                {(("resource_name", resource),): free[resource] for resource in resources},
            ),
            *_metric(
                "devicecore_doctor_findings",
                "Findings by kind.",
                {(("code", check.code),): found[check.code] for check in CHECKS},
            ),
        ]
    )


def _metric(name: str, text: str, values: Mapping[tuple[tuple[str, str], ...], int]) -> Iterator[str]:
    yield f"# HELP {name} {text}\n# TYPE {name} gauge\n"
    for labels, value in values.items():
        pairs = ",".join(f'{label}="{foreign_text(text, _MAX_LABEL).translate(_ESCAPES)}"' for label, text in labels)
        yield f"{name}{{{pairs}}} {value}\n"
