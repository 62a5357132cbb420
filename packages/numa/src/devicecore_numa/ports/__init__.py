"""What the managers need from the outside. For their state, they use the port `CheckpointStore` of devicecore."""
