"""The kubelet's protobuf messages, and their conversion to and from domain values.

Law: nothing in this package registers anything in protobuf's default pool, so that a program may use its own generated
copy of the same API. After a change in `proto/`, `python tools/make_protos.py` rewrites `descriptors.binpb` and the
stubs.
"""
