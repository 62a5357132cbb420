"""Pods and ResourceClaims from a directory of manifests, like the kubelet's static pods.

This package needs the extra `manifests`. Law: A file that cannot be used changes nothing. The error names the file, the
line and the field. The file's previous content stays in force until the file is corrected or deleted, and no other file
is affected.

`directory` implements the port, `file` decides what is in force, `pods` reads the pods in a manifest, `claims` reads
the claims, and `pods_file` keeps what must survive a restart.
"""

from devicecore.system.extras import needs_extra

with needs_extra("manifests"):
    from devicecore.adapters.manifests.directory import Changes, ManifestPods
    from devicecore.adapters.manifests.pods import ManifestError, read_pods

__all__ = ["Changes", "ManifestError", "ManifestPods", "read_pods"]
