"""Adds the explanations of `why` to findings that cite kubelets' messages.

Law: a finding whose message `why` does not recognize stays unchanged.
"""

from attrs import evolve

from devicecore_tools.doctor.findings.finding import NodeFinding
from devicecore_tools.doctor.findings.report import NodeReport
from devicecore_tools.doctor.pod.messages import find


def explained(report: NodeReport) -> NodeReport:
    """Return the report with explanations and advice for the findings that cite a kubelet's message."""
    return evolve(report, findings=tuple(_explained(one) if one.says else one for one in report.findings))


def _explained(finding: NodeFinding) -> NodeFinding:
    found = find(finding.says)
    if found is None:
        return finding
    return evolve(finding, sentence=f"{finding.sentence} {found.because}", do=found.change)
