"""The kubelet's protobuf messages, and domain values to and from them. The only place that knows protobuf.

Law: nothing here registers anything in protobuf's default pool, so that a process may have its own generated copy of
the same API. `python tools/make_protos.py` writes `descriptors.binpb` and the stubs again after a change in `proto/`.
"""
