"""Types for what each source of information about a node said."""
