"""Protobuf messages that only the tools use: the messages of NRI and ttrpc, and the Kubernetes API objects.

Law: these modules register nothing in protobuf's default pool, as in `devicecore.wire`.
"""
