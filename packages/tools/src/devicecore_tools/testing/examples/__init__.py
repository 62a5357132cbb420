"""Programs that the guides use as examples.

The programs are installed with devicecore-tools, so that readers can run them.
"""
