"""What the managers need from the outside. Their state is in a `CheckpointStore` of devicecore."""
