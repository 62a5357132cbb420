"""`devicecore kubelet`: the device manager as a process, in a kubelet's place.

Read `options` for what the user can choose, `command` for the main loop and `view` for what people see. The engine is
`devicecore_tools.node`.
"""
