"""All checks, with the texts that a finding shows besides what the check found.

Law: a check uses one look only. A comparison of looks decides whether a finding lasts (`report.still_wrong`).
"""

from devicecore_tools.doctor.checks.claims import offered_and_claimed, plugin_and_claim
from devicecore_tools.doctor.checks.devices import (
    held_device_not_listed,
    held_device_unhealthy,
    many_numa_nodes,
    more_allocated_than_allocatable,
    node_status_differs,
)
from devicecore_tools.doctor.checks.file import (
    duplicate_cdi_names,
    old_format,
    unreadable_checkpoint,
    unreadable_receipt,
    unresolvable_cdi_names,
    wrong_checksum,
)
from devicecore_tools.doctor.checks.owners import owner_without_pod, sources_disagree, two_owners
from devicecore_tools.doctor.checks.plugins import (
    list_near_limit,
    plugin_answers_late,
    plugin_does_not_answer,
    plugin_lists_nothing,
    resource_without_socket,
    socket_without_resource,
)
from devicecore_tools.doctor.findings import NodeCheck

_KUBERNETES = "https://github.com/kubernetes/kubernetes/issues/"
_STARTS_EMPTY = (
    "The running kubelet does not read the file; its next write replaces it. If the kubelet restarts before that, it "
    "logs the error and starts without any allocation, so devices that containers use may be allocated again."
)
_POD_STATUS = 10.0  # seconds within which pods, checkpoint and kubelet agree after a pod has ended
_NODE_STATUS = 15.0  # seconds: a kubelet writes the Node's status every 10 s
_REGISTRATION = 15.0  # seconds that a plugin has to register again after the kubelet has restarted

CHECKS: tuple[NodeCheck, ...] = (
    NodeCheck(
        "owner-without-pod",
        "a holder in the checkpoint has no pod",
        owner_without_pod,
        "The kubelet frees the devices when it next admits a pod that asks for devices, and removes the entry with "
        "its next write of the file. Until then the entry stays, also over a restart.",
        "kubectl get pods -A -o custom-columns=UID:.metadata.uid,NAME:.metadata.name shows no pod with this UID. A "
        "list of only one namespace, or one that is older than the pod, would not show it either.",
        f"{_KUBERNETES}137010",
        _POD_STATUS,
    ),
    NodeCheck(
        "two-owners",
        "a device belongs to two containers that cannot share it",
        two_owners,
        "The kubelet corrects nothing: both containers keep the device, and it is free when both pods are gone.",
        "Compare the environment or the device files of both containers: kubectl exec POD -c CONTAINER -- env",
        f"{_KUBERNETES}137534",
    ),
    NodeCheck(
        "plugin-and-claim",
        "a device belongs to a container by a plugin and to a ResourceClaim",
        plugin_and_claim,
        "The kubelet notices nothing: it compares neither plugins with drivers nor the devices of both. Both pods use "
        "the device until one of them ends.",
        "Compare devicecore checkpoint show of kubelet_internal_checkpoint and of dra_manager_state. Let either the "
        "plugin or the driver have the device. A claim with adminAccess may share it on purpose.",
        "https://github.com/kubernetes/enhancements/issues/5004",
    ),
    NodeCheck(
        "offered-and-claimed",
        "a plugin offers a device that a ResourceClaim holds",
        offered_and_claimed,
        "The device counts as allocatable, so the kubelet may give it to the next pod that asks for the resource, and "
        "two pods use it then.",
        "devicecore checkpoint show dra_manager_state names the claim. Exclude the device in the configuration of the "
        "plugin or of the driver.",
        "https://github.com/kubernetes/enhancements/issues/5004",
    ),
    NodeCheck(
        "held-not-listed",
        "a container holds a device that its plugin does not list",
        held_device_not_listed,
        "The container keeps running. After the node has restarted, the kubelet refuses the pod with 'previously "
        "allocated devices are no longer healthy'; the device cannot be allocated again until the plugin lists it.",
        "Look in the plugin's log for the device, and on the node for the device itself.",
        f"{_KUBERNETES}92592",
    ),
    NodeCheck(
        "held-unhealthy",
        "a container holds a device that is not healthy",
        held_device_unhealthy,
        "The container keeps running. After the node has restarted, the kubelet refuses the pod with 'previously "
        "allocated devices are no longer healthy'. New pods do not get the device.",
        "status.containerStatuses[].allocatedResourcesStatus of the pod shows the health (Kubernetes 1.36 and "
        "later); the plugin's log tells the cause.",
        "https://github.com/kubernetes/enhancements/issues/4680",
    ),
    NodeCheck(
        "over-allocated",
        "more devices are allocated than are allocatable",
        more_allocated_than_allocatable,
        "The kubelet evicts no pod. The scheduler sends no further pod that asks for the resource until enough pods "
        "have ended.",
        "kubectl describe node NODE lists the requests under 'Allocated resources' and the allocatable number above "
        "it.",
        f"{_KUBERNETES}60388",
        _NODE_STATUS,
    ),
    NodeCheck(
        "node-status-differs",
        "the Node's status differs from the registered devices",
        node_status_differs,
        "The kubelet writes the Node's status about every 10 s, so a difference that lasts means that these writes "
        "fail, that the plugin has gone, or that another program writes the status. The scheduler believes the Node.",
        "kubectl get node NODE -o jsonpath='{.status.allocatable}', and the kubelet's log for 'Error updating node "
        "status'.",
        f"{_KUBERNETES}133724",
        _NODE_STATUS,
    ),
    NodeCheck(
        "socket-without-resource",
        "a plugin serves a socket, but its resource is not registered",
        socket_without_resource,
        "The kubelet does not look for plugins in this directory. It waits until the plugin calls Register.",
        "Look for 'Register' in the log of the plugin, and for 'Got registration request' in that of the kubelet. To "
        "repair it, restart the plugin.",
        f"{_KUBERNETES}127457",
        _REGISTRATION,
    ),
    NodeCheck(
        "resource-without-socket",
        "a resource is registered, but no plugin's socket is there",
        resource_without_socket,
        "If the plugin has gone, its devices count as unhealthy, and after 5 minutes the resource is removed and "
        "stays on the Node with 0. The kubelet never connects by itself; the plugin has to register.",
        "kubectl get pods -A -o wide shows whether the plugin's pod runs on this node. The plugin may have a socket "
        "elsewhere if it registered through another directory.",
        f"{_KUBERNETES}125579",
        _REGISTRATION,
    ),
    NodeCheck(
        "plugin-silent",
        "a plugin does not answer",
        plugin_does_not_answer,
        "If the plugin hangs, admission of a pod that asks for its resource hangs too, because the kubelet has no "
        "deadline for Allocate. If it has gone, its devices are unhealthy.",
        "Look whether the plugin's process runs (not stopped, state T), and restart it. A socket without a process "
        "is left over from a plugin that was killed.",
        f"{_KUBERNETES}117435",
    ),
    NodeCheck(
        "plugin-late",
        "a plugin answers late",
        plugin_answers_late,
        "The kubelet waits: it has no deadline for Allocate and GetPreferredAllocation, and admits one pod at a "
        "time, so each pod on the node waits with it.",
        "Compare kubelet_device_plugin_alloc_duration_seconds in the kubelet's metrics.",
        "https://github.com/NVIDIA/k8s-device-plugin/issues/774",
    ),
    NodeCheck(
        "plugin-empty",
        "a plugin lists no devices",
        plugin_lists_nothing,
        "The kubelet publishes 0 devices for the resource, and refuses pods with 'no healthy devices present'.",
        "Look in the plugin's log for the reason, such as a driver that is not loaded yet.",
        f"{_KUBERNETES}128043",
        _REGISTRATION,
    ),
    NodeCheck(
        "receipt-unreadable",
        "a plugin's answer in the checkpoint cannot be read",
        unreadable_receipt,
        "At its next start the kubelet logs the entry and passes over it. Then the container's devices count as "
        "free, and may be allocated to a second pod.",
        "devicecore checkpoint show FILE names the entry.",
        f"{_KUBERNETES}135711",
    ),
    NodeCheck(
        "checkpoint-checksum",
        "the checkpoint's checksum is wrong",
        wrong_checksum,
        _STARTS_EMPTY,
        "devicecore checkpoint verify FILE. The log of a kubelet that has read the file has 'checkpoint is corrupted'.",
        f"{_KUBERNETES}135711",
    ),
    NodeCheck(
        "checkpoint-unreadable",
        "the checkpoint cannot be read",
        unreadable_checkpoint,
        _STARTS_EMPTY,
        "devicecore checkpoint verify FILE",
        f"{_KUBERNETES}135711",
    ),
    NodeCheck(
        "checkpoint-old-format",
        "the checkpoint's format is older than the kubelet",
        old_format,
        "If the kubelet starts with this file, it cannot read it: it logs the error and starts without any "
        "allocation, so devices that containers use may be allocated again.",
        "devicecore checkpoint verify FILE prints the format; kubectl get node NODE -o wide prints the kubelet's "
        "version.",
        f"{_KUBERNETES}102880",
    ),
    NodeCheck(
        "cdi-duplicate",
        "two CDI files define the same device",
        duplicate_cdi_names,
        "The kubelet passes the name on. The container runtime then finds a conflict and cannot resolve the device: "
        "the container does not start.",
        "grep the name in the CDI directory, and remove the file that nothing maintains any more.",
        "https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md",
    ),
    NodeCheck(
        "cdi-unresolvable",
        "a container was given a CDI device that no file defines",
        unresolvable_cdi_names,
        "The kubelet passes the name on whenever it creates the container. The runtime fails with 'unresolvable CDI "
        "devices', so the container does not start again after it has ended.",
        "grep the name in /etc/cdi and /var/run/cdi. After a reboot /var/run/cdi is empty until the plugin writes it.",
        "https://github.com/NVIDIA/k8s-device-plugin/issues/1252",
    ),
    NodeCheck(
        "list-near-limit",
        "a device list is nearly as large as a kubelet accepts",
        list_near_limit,
        "The kubelet accepts messages of up to 4 MiB. With a larger one it ends the stream, and the resource has 0 "
        "devices.",
        "The kubelet's log has 'received message larger than max'. Use shorter device ids, or fewer devices.",
        f"{_KUBERNETES}109304",
    ),
    NodeCheck(
        "sources-disagree",
        "the pod-resources API and the checkpoint name different holders",
        sources_disagree,
        "The kubelet works with what it answers, and writes that into the checkpoint with its next write. If it "
        "restarts before, it takes its state from the checkpoint.",
        "Compare devicecore checkpoint show DIR with the answer of the pod-resources API.",
        f"{_KUBERNETES}140929",
        _POD_STATUS,
    ),
    NodeCheck(
        "many-numa-nodes",
        "devices are on more than eight NUMA nodes",
        many_numa_nodes,
        "With a topology manager policy other than none the kubelet does not start, unless max-allowable-numa-nodes "
        "allows it; then hints may take very long, because there are 2^N masks.",
        "ls -d /sys/devices/system/node/node* on the node, and topologyManagerPolicy in the kubelet's configuration.",
        f"{_KUBERNETES}135541",
    ),
)
"""All kinds of findings, in the order in which they are reported."""
