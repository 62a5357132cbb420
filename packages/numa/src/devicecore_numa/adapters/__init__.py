"""Machines from different sources. State files are stored by `devicecore.adapters.file.FileStore`."""
