"""What the managers need from the outside world. They store their state through devicecore's `CheckpointStore`."""
