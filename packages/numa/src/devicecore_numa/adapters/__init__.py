"""Machines of several kinds. `devicecore.adapters.file.FileStore` stores state files."""
