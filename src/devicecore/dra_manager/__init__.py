"""The DRA manager, a single object that has a separate part for each piece of state that needs a lock.

Law: a claim is prepared once for all its pods, and released once after the last of these pods is gone, despite failures
and restarts. No lock is held while a driver or the API server is called.
"""

from devicecore.dra_manager.manager import DraManager
from devicecore.dra_manager.preparation import PreparedPod
from devicecore.dra_manager.saved_claims import RestoredClaims

__all__ = ["DraManager", "PreparedPod", "RestoredClaims"]
