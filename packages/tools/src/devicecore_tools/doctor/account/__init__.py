"""What the sources say together: who holds what, what is served, which source is believed."""
