"""What the managers need from the outside. They keep their state in devicecore's `CheckpointStore`."""
