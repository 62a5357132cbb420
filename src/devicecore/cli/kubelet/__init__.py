"""`devicecore kubelet`: the device manager as a process, in a kubelet's place.

Read `options` for what the user can choose, `command` for the main loop, `assembly` for the adapters, `pods` for what
happens to a pod, `outcome` for when a pod is tried again, `state` for what scripts see and `view` for what people see.
"""
