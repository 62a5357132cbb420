"""The engine of `devicecore kubelet`: it runs pods with both managers, in a kubelet's place.

Read `assembly` for the adapters, `engine` for what happens to a pod, `feed` for where pods come from, `outcome` for
when a pod is tried again, and `state` for what scripts see.
"""
