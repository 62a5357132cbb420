"""The engine of `devicecore kubelet`, which runs pods with both managers in place of a kubelet.

Read `assembly` for the adapters, `engine` for the life of a pod, `feed` for the source of pods, `outcome` for
when a pod is retried, and `state` for what scripts see.
"""
