"""Kubelets and an API server for testing device plugins and DRA drivers.

* `kubelet`, `dra_kubelet`: kubelets for tests, and pytest fixtures for them.
* `api_server`: a small API server.
* `process`: plugins and drivers in separate processes.
* `temporary`: directories with paths that are short enough for sockets.
"""
