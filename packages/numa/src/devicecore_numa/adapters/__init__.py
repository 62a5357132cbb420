"""Machines from different sources. `devicecore.adapters.file.FileStore` stores state files."""
