"""What the managers need from the outside world. For their state, they use devicecore's port `CheckpointStore`."""
