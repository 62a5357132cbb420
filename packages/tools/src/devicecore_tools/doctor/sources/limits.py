"""Sizes that readers of several sources share.

Law: it imports nothing, so that commands which read only one file need no reader of others.
"""

MAX_CHECKPOINT_BYTES = 64 * 1024 * 1024
"""Bytes of a checkpoint or of the file of claims; 50,000 allocated devices take 3 MiB."""
