"""Programs that the guides use as examples. They are installed with devicecore, so that readers can run them."""
