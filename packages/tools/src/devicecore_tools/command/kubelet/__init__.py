"""`devicecore kubelet`: the device manager as a process, in place of a kubelet.

Read `options` for the user's choices, `command` for the main loop and `view` for the live view. The engine is
`devicecore_tools.node`.
"""
