"""Dynamic resource allocation as pure values and functions: claims, the pods that use them, and drivers' answers.

Other modules import this package only if they are about claims or drivers, so a program that uses only device plugins
does not load the package. `preparing` and `releasing` decide which drivers to call, and what to save before and after.
`devices` says what a container gets. `state_file` and `health_file` are the kubelet's files.
"""
