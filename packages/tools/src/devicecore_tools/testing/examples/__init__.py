"""Programs that the guides use as examples. They are installed with devicecore-tools, so that readers can run them."""
