"""Pods from a directory of manifests, like the kubelet's static pods. Needs the extra `cli`.

Law: a file that cannot be used changes nothing. Its mistake is reported with file, line and field, what it said before
stays in force until it is mended or gone, and no other file suffers from it.

Read `directory` for the port, `file` for what is in force, `pods` for what a manifest says, `values` for YAML, and
`state` for what survives a restart.
"""

from devicecore.adapters.manifests.directory import Changes, ManifestPods
from devicecore.adapters.manifests.file import LONGEST
from devicecore.adapters.manifests.pods import read_pods
from devicecore.adapters.manifests.values import ManifestError

__all__ = ["LONGEST", "Changes", "ManifestError", "ManifestPods", "read_pods"]
