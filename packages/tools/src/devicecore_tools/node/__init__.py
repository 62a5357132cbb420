"""The engine of `devicecore kubelet`: it runs pods with both managers, in a kubelet's place.

Read `assembly` for the adapters, `pods` for what happens to a pod, `outcome` for when a pod is tried again, and `state`
for what scripts see.
"""
