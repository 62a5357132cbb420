"""Machines of several kinds. State files are kept by `devicecore.adapters.file.FileStore`."""
