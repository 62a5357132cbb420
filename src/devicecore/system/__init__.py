"""Access to the operating system: files, sockets and locks as several adapters use them.

Read `files` for bounded reads and replaced files, `documents` for YAML and JSON within limits, `json_values` for values
as JSON, `directories` for checks of who may write to a directory, `sockets` for unix sockets as files, `locks` for
locks that processes share, `rate` for limits on calls, and `grpc_settings` for the options of every gRPC channel of
this library.

Law: no module here imports an adapter.
"""
