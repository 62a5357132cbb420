"""The engine of `devicecore kubelet`, which runs pods with the device manager and the DRA manager, as a kubelet does.

Read `assembly` for the adapters, `engine` for the life of a pod, `feed` for the source of pods, `outcome` for
when a pod is retried, and `state` for what scripts see.
"""
