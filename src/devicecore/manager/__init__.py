"""The device manager, a single object that has a separate part for each piece of state that needs a lock.

Law: an admission that fails leaves everything as it was; an admission that succeeds is durable before its result is
returned. No plugin is called while a lock is held, and a reader of `state` gets a consistent picture without a lock.
"""

from devicecore.manager.manager import DeviceManager
from devicecore.manager.restoring import Restored
from devicecore.manager.turns import Affinity

__all__ = ["Affinity", "DeviceManager", "Restored"]
