"""A run of a DRA manager.

Law: a part of the manager changes in the run that is under way. Whatever belongs to another run is refused.
"""


class DraRun:
    """One run of a DRA manager, from its start to its stop. Runs are compared by identity."""
