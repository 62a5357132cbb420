"""A writer whose jobs the test runs."""

from collections.abc import Hashable

from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.writer import Job, Writer
from devicecore_tools.testing.api_server import LocalApiServer


class Jobs(Writer):
    """Keeps the newest job for each key, in the order in which the keys arrived."""

    def __init__(self) -> None:
        self.waiting: dict[Hashable, Job] = {}

    def put(self, key: Hashable, job: Job) -> None:
        """Keep a job, which replaces an earlier job with the same key."""
        self.waiting[key] = job

    def run(self, requests: KubeApiRequests, *kinds: str) -> None:
        """Run the jobs of these kinds, by default all jobs, and the jobs that they add, until none is left."""
        while chosen := [key for key in self.waiting if not kinds or (isinstance(key, tuple) and key[0] in kinds)]:
            self.waiting.pop(chosen[0])(requests)

    def sent(self, requests: KubeApiRequests, server: LocalApiServer) -> list[str]:
        """Run all jobs. Return the requests that they sent to the server, such as `get nodes`."""
        before = len(server.requests)
        self.run(requests)
        return [f"{one.verb} {one.resource}" for one in server.requests[before:]]
