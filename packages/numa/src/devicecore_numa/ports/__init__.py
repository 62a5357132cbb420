"""What the managers need from outside. The managers store their state through devicecore's `CheckpointStore`."""
