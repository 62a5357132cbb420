"""Adds the explanations of `why` to findings that cite kubelets' messages.

Law: a finding with a message that `why` does not know stays unchanged.
"""

from attrs import evolve

from devicecore_tools.doctor.findings.finding import NodeFinding
from devicecore_tools.doctor.findings.report import NodeReport
from devicecore_tools.doctor.pod.messages import find


def explained(report: NodeReport) -> NodeReport:
    """Return a report in which findings about refused pods explain their messages and what to do."""
    return evolve(report, findings=tuple(_explained(one) if one.says else one for one in report.findings))


def _explained(finding: NodeFinding) -> NodeFinding:
    found = find(finding.says)
    if found is None:
        return finding
    return evolve(finding, sentence=f"{finding.sentence} {found.because}", do=found.change)
