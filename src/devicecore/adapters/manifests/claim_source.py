"""ResourceClaims for drivers, read from a directory of manifests.

Law: a file that is not a manifest does not hide claims in other files.
"""

import os
from pathlib import Path

from devicecore.adapters.manifests.claims import ManifestClaim
from devicecore.adapters.manifests.pods import ManifestError, read_manifest
from devicecore.domain.dra.errors import ClaimSourceError
from devicecore.domain.dra.model import ClaimKey, ResourceClaim
from devicecore.ports.claims import ClaimSource
from devicecore.system.arguments import checks_arguments
from devicecore.system.documents import MAX_DOCUMENT_SIZE, text_of
from devicecore.system.files import read_file


class ManifestClaims(ClaimSource):
    """A `ClaimSource` for drivers that run alongside `devicecore kubelet`: a directory of manifests, read at each call.

    A claim whose manifest does not reserve it is not reserved for any pod here, because drivers need not know for which
    pods it is reserved.

    Args:
        directory: the directory of the manifests.
    """

    @checks_arguments()
    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    @checks_arguments()
    def get(self, key: ClaimKey) -> ResourceClaim:
        """Return the claim. Unusable manifests are ignored.

        Raises:
            ClaimSourceError: there is no such claim, or the directory cannot be read.
        """
        try:
            for path in sorted(self._directory.iterdir()):
                for one in _claims_in(path):
                    if one.claim.key == key:
                        return one.claim
        except OSError as error:
            cause = f"{self._directory}: {error.strerror or error}"
            raise ClaimSourceError(cause) from error
        cause = f'resourceclaims.resource.k8s.io "{key.name}" not found'
        raise ClaimSourceError(cause)


def _claims_in(path: Path) -> tuple[ManifestClaim, ...]:
    if path.name.startswith(".") or path.name.endswith(("~", "#")):
        return ()
    try:
        data = read_file(path, MAX_DOCUMENT_SIZE, follow_links=True)
        return read_manifest(text_of(data, path.name, error=ManifestError), path.name).claims
    except (OSError, ManifestError):
        return ()
