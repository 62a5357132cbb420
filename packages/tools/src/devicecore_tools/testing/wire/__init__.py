"""Protobuf messages that only the tools know: those of NRI, of ttrpc, and the objects of the Kubernetes API.

Law: nothing here registers anything in protobuf's default pool, as in `devicecore.wire`.
"""
