"""Parts of the operating system that several adapters use.

Read `files` for bounded reads and replaced files, `documents` for YAML and JSON within limits, `json_values` for values
as JSON, `directories` for the rule about who may write to a directory, `sockets` for unix sockets as files, `locks` for
locks that processes share, `background` for tasks that are restarted, `rate` for limits on calls, and `grpc_settings`
for how every gRPC channel of this library is set up.

Law: no module here imports an adapter, or depends on the protocol used on a socket.
"""
