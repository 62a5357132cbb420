"""What the device manager needs of the world, in domain words. Each is small enough to read in a minute."""
