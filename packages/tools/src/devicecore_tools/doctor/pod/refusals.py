"""What `why` says about the messages of kubelets that findings cite.

Law: a finding whose message `why` does not know stays as it is.
"""

from attrs import evolve

from devicecore_tools.doctor.findings.finding import NodeFinding
from devicecore_tools.doctor.findings.report import NodeReport
from devicecore_tools.doctor.pod.messages import find


def explained(report: NodeReport) -> NodeReport:
    """Return a report whose findings of refused pods say what their messages mean, and what to do."""
    return evolve(report, findings=tuple(_explained(one) if one.says else one for one in report.findings))


def _explained(finding: NodeFinding) -> NodeFinding:
    found = find(finding.says)
    if found is None:
        return finding
    return evolve(finding, sentence=f"{finding.sentence} {found.because}", do=found.change)
