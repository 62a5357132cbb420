"""Types for what each source of a node said."""
