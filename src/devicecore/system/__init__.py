"""What adapters share of the operating system, whatever they serve.

Read `files` for bounded reads and replaced files, `documents` for YAML and JSON within limits, `directories` for the
rule about who may write to a directory, `sockets` for unix sockets as files, `background` for tasks that are restarted,
`rate` for limits on calls, and `grpc_settings` for how every gRPC channel of this library is set up.

Law: nothing here imports an adapter or knows what is said on a socket.
"""
