"""What the managers need from the outside. They keep their state in a `CheckpointStore`, a port of devicecore."""
