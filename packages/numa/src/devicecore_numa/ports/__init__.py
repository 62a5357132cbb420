"""What the managers need of the world around them. Their state is kept in a `CheckpointStore` of devicecore."""
