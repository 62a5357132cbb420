"""What the managers need from the outside. Their state is in devicecore's `CheckpointStore`."""
