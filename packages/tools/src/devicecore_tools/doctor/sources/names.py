"""Names that readers of several sources share.

Law: it imports nothing, so that commands which read only one file need no reader of others.
"""

LIST_NAME, ALLOCATABLE_NAME = "pod-resources-list.json", "pod-resources-allocatable.json"
"""What a record calls the answers of the pod-resources API."""
