"""Lists all checks, with the advice that their findings show.

Law: a check uses a single `Look`. `report` compares several `Look`s to decide whether a finding lasts
(`report.still_wrong`).
"""

from devicecore_tools.doctor.findings.checks import claims, devices, file, kubelet, owners, plugins, pods
from devicecore_tools.doctor.findings.finding import Keeps, NodeCheck

_KUBERNETES = "https://github.com/kubernetes/kubernetes/issues/"
_STARTS_EMPTY = (
    "The running kubelet does not read the file; its next write replaces it. If the kubelet restarts before that, it "
    "logs the error and starts without any allocation, so devices that containers use may be allocated again."
)
_POD_STATUS = 10.0  # seconds until pods, checkpoint and kubelet agree after a pod has ended
_NODE_STATUS = 15.0  # seconds: a kubelet takes about 10 s to write a change to the Node's status
_REGISTRATION = 15.0  # seconds for a plugin to register again after a restart of the kubelet
_RESTART = 30.0  # seconds: a service manager restarts a kubelet after 10 s, and starting takes some time
_SLICES = 40.0  # seconds: a driver's helper library publishes again 30 s after a kubelet has deleted the slices

CHECKS: tuple[NodeCheck, ...] = (
    NodeCheck(
        "kubelet-gone",
        "no kubelet is running on the node, or the kubelet does not answer",
        find=kubelet.kubelet_gone,
        next="Containers keep running with their devices. No pod is admitted, stopped or reported until a kubelet is "
        "running. After 40 to 50 s the Node becomes NotReady, and after 5 minutes its pods are evicted.",
        do="Start the kubelet: systemctl restart kubelet. If it exits again, the end of its log says why: journalctl "
        "-u kubelet -n 50.",
        confirm="systemctl status kubelet, and the end of the kubelet's log.",
        issue=f"{_KUBERNETES}127653",
        patience=_RESTART,
        keeps=Keeps.ALL,
    ),
    NodeCheck(
        "node-not-ready",
        "the Node is not Ready, although its kubelet is running",
        find=kubelet.node_not_ready,
        next="The scheduler sends no pod to the node. Running pods keep their devices.",
        do="Fix the problem that the message names. If it names none, see the kubelet's log: journalctl -u kubelet.",
        confirm="kubectl describe node NODE shows the condition Ready with its message.",
        issue="https://kubernetes.io/docs/reference/node/node-status/#condition",
        patience=_RESTART,
        keeps=Keeps.ALL,
        is_one=True,  # a kubelet may change the message while the Node stays not Ready
    ),
    NodeCheck(
        "pods-not-taken",
        "the kubelet does not pick up pods that are sent to it",
        find=kubelet.pods_not_taken,
        next="A kubelet admits one pod at a time, and has no deadline for a plugin's answer to Allocate: while a "
        "plugin hangs for one pod, all other pods wait.",
        do="Restart the hanging plugin if there is a finding about one, or else the kubelet: systemctl restart "
        "kubelet. The kubelet's log shows which pod it has started to admit.",
        confirm="kubectl get pods -A --field-selector spec.nodeName=NODE,status.phase=Pending lists these pods, which "
        "have no IP and no events from the kubelet.",
        issue=f"{_KUBERNETES}117435",
        patience=_POD_STATUS,
        keeps=Keeps.ALL,
    ),
    NodeCheck(
        "node-missing",
        "the API server has no Node with this name",
        find=kubelet.node_missing,
        next="Without a Node object, the scheduler sends no pods, and the node's pods are deleted from the API "
        "server. A kubelet creates its Node only when it starts.",
        do="If --node-name is right, restart the kubelet so that it creates the Node again: systemctl restart kubelet.",
        confirm="kubectl get nodes lists the existing names.",
        issue="https://kubernetes.io/docs/concepts/architecture/nodes/#management",
        patience=_NODE_STATUS,
        keeps=Keeps.ALL,
    ),
    NodeCheck(
        "node-closed",
        "the Node accepts no new pods",
        find=kubelet.node_takes_no_pod,
        next="Running pods keep their devices. New pods cannot use the free devices, unless a taint is the cause and "
        "they tolerate it.",
        do="Uncordon the Node, remove its taint, or fix the problem that its condition reports.",
        confirm="kubectl describe node NODE shows its taints, its conditions and its pods.",
        issue="https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/",
        patience=_NODE_STATUS,
        keeps=Keeps.ALL,
    ),
    NodeCheck(
        "kubelet-cannot-start",
        "a kubelet cannot start with one of its state files",
        find=kubelet.kubelet_cannot_start,
        next="A kubelet reads the file when it starts, and exits with an error each time. A kubelet that is already "
        "running continues until it is restarted.",
        do="Drain the node (kubectl drain NODE --ignore-daemonsets), stop the kubelet and move the file elsewhere.",
        confirm="The end of the kubelet's log names the file. If the file is dra_manager_state, this command lists its "
        "claims: devicecore checkpoint show dra_manager_state",
        issue=f"{_KUBERNETES}131253",
        keeps=Keeps.ALL,
    ),
    NodeCheck(
        "kubelet-starting",
        "the kubelet has just started",
        find=kubelet.kubelet_starting,
        next="The kubelet lists its pods again within seconds, and each plugin registers again when it sees the new "
        "kubelet.sock. Meanwhile, pods keep their devices.",
        do="Wait a minute and check again. If this lasts, journalctl -u kubelet shows what the kubelet is waiting for.",
        confirm="kubectl get --raw /api/v1/nodes/NODE/proxy/pods lists the pods that the kubelet knows.",
        issue=f"{_KUBERNETES}109595",
        patience=_REGISTRATION,
        keeps=Keeps.ALL,
    ),
    NodeCheck(
        "resource-not-on-node",
        "the Node does not have a resource that pods hold",
        find=devices.node_lacks_resource,
        next="The scheduler sends no pod that requests the resource. Pods that have devices keep them.",
        do="Restart the plugin so that it registers, or the kubelet so that it rewrites the Node's status.",
        confirm="kubectl get node NODE -o jsonpath='{.status.capacity}' does not list the resource.",
        issue=f"{_KUBERNETES}125579",
        patience=_NODE_STATUS,
        keeps=Keeps.OF_RESOURCE,
    ),
    NodeCheck(
        "request-without-device",
        "a running pod requests devices that the kubelet has no record of",
        find=owners.request_without_device,
        next="The kubelet counts the devices of these pods as free and allocates them to other pods. Only the pods' "
        "requests still limit how many devices are allocated.",
        do="Drain the node, or delete these pods before new ones arrive: a new pod is recorded again.",
        confirm="Compare the environment or the device files of the containers: kubectl exec POD -c CONTAINER -- env.",
        issue=f"{_KUBERNETES}137534",
        keeps=Keeps.OF_RESOURCE,
    ),
    NodeCheck(
        "two-owners",
        "a device belongs to two containers that cannot share it",
        find=owners.two_owners,
        next="The kubelet does not correct this: both containers keep the device until both pods are gone.",
        do="Delete one of the pods (kubectl delete pod POD). A new one gets a different device.",
        confirm="Compare the environment or the device files of both containers: kubectl exec POD -c CONTAINER -- env",
        issue=f"{_KUBERNETES}137534",
    ),
    NodeCheck(
        "plugin-and-claim",
        "a device is held both through a plugin and by a ResourceClaim",
        find=claims.plugin_and_claim,
        next="The kubelet does not notice, because it never compares the devices of plugins with those of drivers. "
        "Both pods use the device until one of them ends.",
        do="Exclude the device in the configuration of either the plugin or the driver, and delete one of the pods. A "
        "claim with adminAccess may share the device on purpose.",
        confirm="Compare the output of devicecore checkpoint show for kubelet_internal_checkpoint and for "
        "dra_manager_state.",
        issue="https://github.com/kubernetes/enhancements/issues/5004",
    ),
    NodeCheck(
        "offered-and-claimed",
        "a plugin offers a device that a ResourceClaim holds",
        find=claims.offered_and_claimed,
        next=(
            "The device counts as allocatable, so the kubelet may allocate it to the next pod that requests the "
            "resource. Then two pods use the device."
        ),
        do="Exclude the device in the plugin's or the driver's configuration.",
        confirm="devicecore checkpoint show dra_manager_state names the claim.",
        issue="https://github.com/kubernetes/enhancements/issues/5004",
    ),
    NodeCheck(
        "driver-gone",
        "a DRA driver is gone",
        find=claims.driver_gone,
        next=(
            "The kubelet can neither prepare nor release the driver's claims. The kubelet deletes the driver's "
            "ResourceSlices 30 s after the driver is gone."
        ),
        do="Start the driver's pod on this node again: kubectl get pods -A -o wide --field-selector spec.nodeName=NODE"
        " shows it, and kubectl logs shows why it ended.",
        confirm="ls /var/lib/kubelet/plugins_registry shows no socket on which the driver listens.",
        issue=f"{_KUBERNETES}129402",
        patience=_REGISTRATION,
    ),
    NodeCheck(
        "driver-silent",
        "a DRA driver does not answer",
        find=claims.driver_silent,
        next="Whenever the kubelet has to prepare or release a claim, it waits for the driver until the call's "
        "deadline. Pods with such a claim stay Pending, and deleted ones stay Terminating. The driver's ResourceSlices "
        "stay, so the scheduler keeps sending pods.",
        do="Restart the driver's pod on this node. The pod's log says what the driver is waiting for: kubectl get pods "
        "-A -o wide --field-selector spec.nodeName=NODE shows the pod.",
        confirm="Check whether the driver's process is running (and not stopped, state T), and look for "
        "'DeadlineExceeded' in the kubelet's log.",
        issue=f"{_KUBERNETES}129402",
        patience=_REGISTRATION,
    ),
    NodeCheck(
        "claim-not-prepared",
        "a pod waits for a ResourceClaim",
        find=claims.pod_waits_for_claim,
        next="The pod stays Pending. The kubelet tries again every 60 to 90 seconds.",
        do="Fix the problem that the event names. For a driver's error, see the driver's log. The pod then continues "
        "on its own.",
        confirm="kubectl describe pod POD lists the event FailedPrepareDynamicResources; the pod's status does not "
        "show it.",
        issue=f"{_KUBERNETES}129402",
    ),
    NodeCheck(
        "claim-without-record",
        "the kubelet has no record of a running pod's ResourceClaim",
        find=claims.claim_without_record,
        next="The containers keep running, but none can restart ('unable to get claim info'), and when the pod ends, "
        "no driver is called to release the claim.",
        do="Delete the pod so that a new one prepares its claim: kubectl delete pod POD.",
        confirm="devicecore checkpoint show dra_manager_state does not name the claim for the pod.",
        issue=f"{_KUBERNETES}123552",
        patience=_POD_STATUS,
    ),
    NodeCheck(
        "claim-taken-away",
        "a running pod's ResourceClaim has lost its devices or its reservation",
        find=claims.claim_taken_away,
        next=(
            "The pod keeps running. The devices count as free, or will when the claim's controller next processes the "
            "claim. Then the scheduler can allocate them to another pod while this pod still uses them."
        ),
        do="Delete the pod so that a new one gets its own devices: kubectl delete pod POD.",
        confirm="kubectl get resourceclaim CLAIM -o yaml shows status.allocation and status.reservedFor.",
        issue="https://github.com/kubernetes/enhancements/issues/4381",
        patience=_POD_STATUS,
    ),
    NodeCheck(
        "pod-cannot-end",
        "a pod that is being deleted waits for a DRA driver",
        find=claims.pod_cannot_end,
        next="The pod stays Terminating. The kubelet retries about every 10 seconds, which only the kubelet's log "
        "shows.",
        do="Bring the driver back on this node. Do not force-delete the pod: its devices would stay allocated.",
        confirm="kubectl get pod POD shows Terminating, and the kubelet's log contains 'unprepare'.",
        issue=f"{_KUBERNETES}131957",
        patience=_REGISTRATION,
    ),
    NodeCheck(
        "pod-does-not-end",
        "a pod that is being deleted does not end, and holds devices",
        find=owners.pod_does_not_end,
        next="The kubelet keeps the devices for the pod, and keeps trying to stop it. The scheduler counts the devices "
        "as used.",
        do="Find out from the kubelet's log why the container does not stop ('StopContainer', 'KillPodSandbox'). "
        "Often its process waits for the device in the kernel, and only a reboot of the node ends it. Do not "
        "force-delete the pod: its devices would be allocated to another pod.",
        confirm="kubectl get pod POD shows Terminating; on the node, ps shows one of its processes in state D.",
        issue=f"{_KUBERNETES}51835",
        patience=_POD_STATUS,
    ),
    NodeCheck(
        "claimed-unhealthy",
        "a container holds an unhealthy device of a DRA driver",
        find=claims.claimed_device_unhealthy,
        next="The container keeps running. Unless the driver taints the device, neither the scheduler nor the "
        "kubelet withholds it from other pods.",
        do="Check the driver's log for messages about the device, and delete the pod if it needs a different device.",
        confirm="status.containerStatuses[].allocatedResourcesStatus of the pod shows the health.",
        issue="https://github.com/kubernetes/enhancements/issues/4680",
    ),
    NodeCheck(
        "device-tainted",
        "a taint prevents claims from getting a DRA driver's device",
        find=claims.device_tainted,
        next="The scheduler gives the device only to claims that tolerate the taint. If the taint's effect is "
        "NoExecute, pods that hold the device and do not tolerate it are evicted.",
        do="If the driver set the taint, check the driver's log to see what is wrong with the device. If an "
        "administrator set the taint, remove the DeviceTaintRule when the work is done.",
        confirm="kubectl get resourceslices --field-selector spec.nodeName=NODE -o yaml and kubectl get "
        "devicetaintrules show the taint.",
        issue=(
            "https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/#device-taints-and-tolerations"
        ),
        patience=_NODE_STATUS,
    ),
    NodeCheck(
        "two-claims",
        "a device of a DRA driver is allocated to two ResourceClaims",
        find=claims.two_claims,
        next="The kubelet prepares both claims if the driver allows it: two pods then use one device, and neither "
        "knows about the other.",
        do="Delete one of the pods and its claim. Two schedulers that both allocate devices, or a restored backup of "
        "claims, can cause this.",
        confirm="kubectl get resourceclaims -A -o yaml shows the device in two allocations.",
        issue="https://github.com/kubernetes/enhancements/issues/4381",
        patience=_POD_STATUS,
    ),
    NodeCheck(
        "slices-missing",
        "a DRA driver is running, but its ResourceSlices are gone",
        find=claims.slices_missing,
        next="No pod that requests the driver's devices is scheduled to this node until the driver publishes again. "
        "Pods that have devices keep them.",
        do="Restart the driver so that it publishes its devices again.",
        confirm="kubectl get resourceslices --field-selector spec.nodeName=NODE lists no slices from the driver.",
        issue=f"{_KUBERNETES}128696",
        patience=_SLICES,
    ),
    NodeCheck(
        "held-not-published",
        "a container holds a device that its DRA driver no longer publishes",
        find=claims.held_not_published,
        next="The container keeps running. The scheduler allocates the device to no other pod, and the claim keeps it "
        "until the pod ends. Only the driver and the container know whether the device still works.",
        do="Find out from the driver's log why the device is missing. If the device is broken, delete the pod so that "
        "a new one gets a different device.",
        confirm="kubectl get resourceslices --field-selector spec.nodeName=NODE -o yaml does not list the device.",
        issue="https://github.com/kubernetes/enhancements/issues/4381",
        patience=_SLICES,
    ),
    NodeCheck(
        "plugin-gone",
        "the kubelet has no device of a resource that pods hold",
        find=plugins.plugin_gone,
        next="Pods that have devices keep them, but once the plugin has been gone for 5 minutes, their containers "
        "cannot restart. The kubelet refuses new pods that request the resource, with 'no healthy devices present' or "
        "'unregistered device'; deleting a pod does not help. The kubelet never connects on its own: the plugin has to "
        "register.",
        do="Restart the plugin's pod on this node so that it registers: kubectl get pods -A -o wide --field-selector "
        "spec.nodeName=NODE shows it, then kubectl delete pod POD.",
        confirm="kubectl get node NODE -o jsonpath='{.status.allocatable}' shows 0 for the resource, even if the "
        "plugin's pod is running.",
        issue=f"{_KUBERNETES}125579",
        patience=_REGISTRATION,
        keeps=Keeps.OF_RESOURCE,
    ),
    NodeCheck(
        "held-not-listed",
        "a container holds a device that its plugin does not list",
        find=devices.held_device_not_listed,
        next="The container keeps running. After the node has restarted, the kubelet refuses the pod with 'previously "
        "allocated devices are no longer healthy'; the device cannot be allocated again until the plugin lists it.",
        do="Check the plugin's log for messages about the device. If the device is broken, delete the pod so that a "
        "new one gets a different device.",
        confirm="devicecore doctor --plugins shows the plugin's list.",
        issue=f"{_KUBERNETES}92592",
    ),
    NodeCheck(
        "held-unhealthy",
        "a container holds a device that is not healthy",
        find=devices.held_device_unhealthy,
        next="The container keeps running. After the node has restarted, the kubelet refuses the pod with 'previously "
        "allocated devices are no longer healthy'. New pods do not get the device.",
        do="Check the plugin's log for messages about the device. If the device stays unhealthy, delete the pod so "
        "that a new one gets a different device.",
        confirm="devicecore doctor --plugins queries the plugin. From Kubernetes 1.36 on, a pod's status also shows "
        "the health (allocatedResourcesStatus), but only while the plugin is running, and only when the status next "
        "changes.",
        issue="https://github.com/kubernetes/enhancements/issues/4680",
    ),
    NodeCheck(
        "unhealthy",
        "a device that no container holds is not healthy",
        find=devices.unhealthy_device,
        next="The kubelet allocates the device to no pod until the plugin reports it as healthy.",
        do="Read the plugin's log for the cause, and repair the device.",
        confirm="On the node, devicecore doctor --plugins names the device.",
        issue="https://github.com/kubernetes/enhancements/issues/4680",
        patience=_NODE_STATUS,
    ),
    NodeCheck(
        "over-allocated",
        "more devices are allocated than are allocatable",
        find=devices.more_allocated_than_allocatable,
        next="The kubelet evicts no pod. The scheduler sends no further pod that requests the resource until enough "
        "pods have ended.",
        do="Stop pods that hold the resource, or check the plugin's log to see why the plugin lists fewer devices.",
        confirm="kubectl describe node NODE lists the requests under 'Allocated resources' and the allocatable number "
        "above it.",
        issue=f"{_KUBERNETES}60388",
        patience=_NODE_STATUS,
        keeps=Keeps.OF_RESOURCE,
    ),
    NodeCheck(
        "node-status-differs",
        "the Node's status differs from the kubelet's devices",
        find=devices.node_status_differs,
        next="The kubelet takes about 10 s to write a change to the Node's status, so a lasting difference means that "
        "these writes fail, that the plugin is gone, or that another program writes the status. The scheduler relies "
        "on the Node's status.",
        do="Find out from the kubelet's log why it does not write the status ('Error updating node status'), and "
        "check whether another program writes it.",
        confirm="kubectl get node NODE -o jsonpath='{.status.allocatable}'",
        issue=f"{_KUBERNETES}133724",
        patience=_NODE_STATUS,
    ),
    NodeCheck(
        "socket-without-resource",
        "a plugin serves a socket, but its resource is not registered",
        find=plugins.socket_without_resource,
        next="The kubelet does not look for plugins in this directory. Either the plugin has not called Register, or "
        "the kubelet has refused the call because the API version is not v1beta1, or because the resource name is "
        "invalid (expected vendor.domain/name, not below kubernetes.io).",
        do="Read the plugin's log for the answer to Register. If the kubelet refused the call, use the plugin's "
        "release for this version of Kubernetes, or fix the resource name. Otherwise restart the plugin so that it "
        "registers.",
        confirm="Look for 'Register' in the plugin's log, and for 'Got registration request' and 'Bad registration "
        "request' in the kubelet's log.",
        issue=f"{_KUBERNETES}127457",
        patience=_REGISTRATION,
    ),
    NodeCheck(
        "resource-without-socket",
        "a resource is registered, but there is no plugin socket for it",
        find=plugins.resource_without_socket,
        next="If the plugin is gone, its devices count as unhealthy, and after 5 minutes the kubelet removes the "
        "resource, which stays on the Node with the value 0. The kubelet never connects on its own: the plugin has "
        "to register.",
        do="Restart the plugin so that it creates its socket again and registers.",
        confirm="kubectl get pods -A -o wide shows whether the plugin's pod runs on this node. If the plugin "
        "registered through another directory, its socket may be elsewhere.",
        issue=f"{_KUBERNETES}125579",
        patience=_REGISTRATION,
    ),
    NodeCheck(
        "plugin-silent",
        "a plugin does not answer",
        find=plugins.plugin_does_not_answer,
        next="If the plugin hangs, admission of a pod that requests the plugin's resource hangs, too, because the "
        "kubelet has no deadline for Allocate. If the plugin is gone, its devices are unhealthy.",
        do="Restart the plugin. The plugin's log shows what it was waiting for.",
        confirm="Check whether the plugin's process is running (and not stopped, state T). A socket without a process "
        "is left over from a plugin that was killed.",
        issue=f"{_KUBERNETES}117435",
        keeps=Keeps.OF_RESOURCE,
    ),
    NodeCheck(
        "list-too-long",
        "a plugin's list is too long",
        find=plugins.list_too_long,
        next="The kubelet accepts messages of up to 4 MiB. When a message is larger, the kubelet ends the stream, "
        "and the resource has 0 devices.",
        do="Use shorter device ids, or fewer devices.",
        confirm="The kubelet's log contains 'received message larger than max'.",
        issue=f"{_KUBERNETES}109304",
        keeps=Keeps.OF_RESOURCE,
    ),
    NodeCheck(
        "plugin-restarts",
        "a plugin keeps restarting",
        find=plugins.plugin_restarts,
        next=(
            "Each time the plugin exits, the kubelet counts its devices as unhealthy, and refuses pods that request "
            "them until the plugin has registered again."
        ),
        do="Read the log of the plugin's previous container: kubectl logs --previous.",
        confirm="kubectl get pods -A -o wide --field-selector spec.nodeName=NODE shows how often the plugin's pod has "
        "restarted.",
        issue="https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy",
    ),
    NodeCheck(
        "plugins-differ",
        "two plugins serve one resource with different devices",
        find=plugins.plugins_differ,
        next="The kubelet knows one plugin for each resource: the one that registered last. The other plugin's devices "
        "are not on the Node, and pods that hold some of them keep running.",
        do="Run one plugin for each resource on the node, or give them resources with different names: kubectl get "
        "pods -A -o wide --field-selector spec.nodeName=NODE shows the plugins' pods.",
        confirm="devicecore doctor --plugins lists the sockets with their devices.",
        issue="https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/",
        patience=_NODE_STATUS,
    ),
    NodeCheck(
        "list-differs",
        "a plugin's list differs from the kubelet's",
        find=plugins.list_differs,
        next="The kubelet uses its own list: it does not allocate devices that are missing from that list, and keeps "
        "allocating those that it counts as healthy.",
        do="Restart the plugin, so that it registers again and sends its list in a new stream.",
        confirm="Compare the output of devicecore doctor --plugins --json with the answer to GetAllocatableResources "
        "of the pod-resources API.",
        issue=f"{_KUBERNETES}92958",
        patience=_NODE_STATUS,
        keeps=Keeps.OF_RESOURCE,
    ),
    NodeCheck(
        "listed-twice",
        "a plugin lists an id twice",
        find=devices.listed_twice,
        next=(
            "The kubelet keeps ids in sets: it counts the id both as healthy and as unhealthy, and may allocate the "
            "device regardless of its health."
        ),
        do="Fix the plugin: each device needs its own id, and one entry in the list.",
        confirm="devicecore doctor --plugins --json shows the plugin's list.",
        issue="https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/",
    ),
    NodeCheck(
        "same-ids",
        "two resources have the same ids",
        find=devices.same_ids,
        next="The kubelet allocates the devices of both resources, each as if the other did not exist.",
        do="Run one plugin for the devices, or configure the plugins so that each device belongs to one resource.",
        confirm="devicecore doctor --plugins lists the devices of both resources.",
        issue="https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/",
        patience=_NODE_STATUS,
    ),
    NodeCheck(
        "numa-node-missing",
        "a device is on a NUMA node that the machine does not have",
        find=devices.numa_node_missing,
        next="With a topology manager policy that requires alignment (single-numa-node, restricted), the kubelet "
        "refuses each pod that requests the device, with TopologyAffinityError. With other policies, the kubelet "
        "allocates the device.",
        do="Fix the topology that the plugin sends. The topology may be meant for a different machine.",
        confirm="ls -d /sys/devices/system/node/node* on the node lists the NUMA nodes.",
        issue=f"{_KUBERNETES}135541",
        keeps=Keeps.OF_RESOURCE,
    ),
    NodeCheck(
        "plugin-late",
        "a plugin answers late",
        find=plugins.plugin_answers_late,
        next="The kubelet waits: it has no deadline for Allocate and GetPreferredAllocation, and admits one pod at a "
        "time, so all other pods that the node has yet to admit wait, too.",
        do="Check the node's load and the plugin's log.",
        confirm="See kubelet_device_plugin_alloc_duration_seconds in the kubelet's metrics.",
        issue="https://github.com/NVIDIA/k8s-device-plugin/issues/774",
    ),
    NodeCheck(
        "plugin-empty",
        "a plugin lists no devices",
        find=plugins.plugin_lists_nothing,
        next="The kubelet publishes 0 devices for the resource, and refuses pods with 'no healthy devices present'.",
        do="Look in the plugin's log for the reason, such as a kernel driver that is not loaded yet.",
        confirm="devicecore doctor --plugins shows that the plugin's list is empty.",
        issue=f"{_KUBERNETES}128043",
        patience=_REGISTRATION,
        keeps=Keeps.OF_RESOURCE,
    ),
    NodeCheck(
        "receipt-unreadable",
        "a plugin's answer in the checkpoint cannot be read",
        find=file.unreadable_receipt,
        next="When the kubelet next starts, it logs the entry and skips it. Then the container's devices count as "
        "free, and may be allocated to a second pod.",
        do="Delete the entry's pod before the kubelet restarts, so that a new one gets a readable entry.",
        confirm="devicecore checkpoint show FILE names the entry.",
        issue=f"{_KUBERNETES}102880",
    ),
    NodeCheck(
        "checkpoint-checksum",
        "the checkpoint's checksum is wrong",
        find=file.wrong_checksum,
        next=_STARTS_EMPTY,
        do="Let the running kubelet write the file again: start a pod that requests devices. If no kubelet is "
        "running, devicecore checkpoint repair FILE NEWFILE keeps the correct entries.",
        confirm="devicecore checkpoint verify FILE. The log of a kubelet that has read the file contains 'checkpoint "
        "is corrupted'.",
        issue=f"{_KUBERNETES}86677",
    ),
    NodeCheck(
        "checkpoint-unwritable",
        "the kubelet cannot write its checkpoint",
        find=file.unwritable_checkpoint,
        next=(
            "The kubelet refuses each pod that would get devices ('failed to write checkpoint file'). If the kubelet "
            "restarts, it knows only what it wrote before."
        ),
        do="Free space on the file system of /var/lib/kubelet. If there is a directory in place of the file, drain "
        "the node, stop the kubelet and move the directory away.",
        confirm="A refused pod's message says 'failed to write checkpoint file'. See also the output of df and df -i "
        "for /var/lib/kubelet/device-plugins.",
        issue="https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/",
    ),
    NodeCheck(
        "checkpoint-unreadable",
        "the checkpoint cannot be read",
        find=file.unreadable_checkpoint,
        next=_STARTS_EMPTY,
        do="Let the running kubelet write the file again: start a pod that requests devices. If no kubelet is "
        "running, devicecore checkpoint repair FILE NEWFILE keeps what can be read.",
        confirm="devicecore checkpoint verify FILE",
        issue=f"{_KUBERNETES}54088",
    ),
    NodeCheck(
        "checkpoint-old-format",
        "the checkpoint's format is older than the kubelet",
        find=file.old_format,
        next="A kubelet that starts with this file cannot read it: the kubelet logs the error and starts without any "
        "allocation, so devices that containers use may be allocated again.",
        do="Drain the node before the kubelet starts, or convert the file: devicecore checkpoint convert --help.",
        confirm="devicecore checkpoint verify FILE prints the format; kubectl get node NODE -o wide prints the "
        "kubelet's version.",
        issue=f"{_KUBERNETES}102880",
    ),
    NodeCheck(
        "cdi-duplicate",
        "two CDI files define the same device",
        find=file.duplicate_cdi_names,
        next="The kubelet passes the device's name to the container runtime, which finds a conflict and cannot "
        "resolve the device, so the container does not start.",
        do="Remove the file that no program maintains any longer.",
        confirm="grep for the device's name in the CDI directory.",
        issue="https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md",
    ),
    NodeCheck(
        "cdi-unresolvable",
        "a container was given a CDI device that no file defines",
        find=file.unresolvable_cdi_names,
        next="The kubelet passes the device's name to the runtime, which fails with 'unresolvable CDI devices', so the "
        "container does not start again after it has ended.",
        do="Restart the plugin or the tool that writes the CDI files, then delete the pod.",
        confirm="grep for the device's name in /etc/cdi and /var/run/cdi. After a reboot, /var/run/cdi is empty "
        "until the plugin writes its files again.",
        issue="https://github.com/NVIDIA/k8s-device-plugin/issues/1252",
    ),
    NodeCheck(
        "list-near-limit",
        "a device list is nearly as large as a kubelet accepts",
        find=plugins.list_near_limit,
        next="The kubelet accepts messages of up to 4 MiB. When a message is larger, the kubelet ends the stream, "
        "and the resource has 0 devices.",
        do="Use shorter device ids, or fewer devices.",
        confirm="The kubelet's log contains 'received message larger than max'.",
        issue=f"{_KUBERNETES}109304",
    ),
    NodeCheck(
        "sources-disagree",
        "the pod-resources API and the checkpoint name different holders",
        find=owners.sources_disagree,
        next="The kubelet uses the state that its answer shows, and its next write puts that state into the "
        "checkpoint. If the kubelet restarts before then, it takes its state from the checkpoint.",
        do=(
            "Start a pod that requests devices, so that the kubelet writes its checkpoint. If that does not help, "
            "check the kubelet's log to see why it cannot write the file."
        ),
        confirm="Compare the output of devicecore checkpoint show DIR with the answer from the pod-resources API.",
        issue=f"{_KUBERNETES}140929",
        patience=_POD_STATUS,
    ),
    NodeCheck(
        "many-numa-nodes",
        "there are more NUMA nodes than the topology manager accepts",
        find=devices.many_numa_nodes,
        next="With a topology manager policy other than none, the kubelet does not start unless "
        "max-allowable-numa-nodes allows that many. Computing hints may then take a very long time, because there are "
        "2^N combinations of NUMA nodes.",
        do="Set max-allowable-numa-nodes, or the topology manager policy none, in the kubelet's configuration.",
        confirm="ls -d /sys/devices/system/node/node* on the node lists the NUMA nodes. For the policy, see "
        "topologyManagerPolicy in the kubelet's configuration.",
        issue=f"{_KUBERNETES}135541",
    ),
    NodeCheck(
        "container-cannot-start",
        "a container cannot start with its devices",
        find=pods.container_cannot_start,
        next="The kubelet retries every 10 to 15 seconds, indefinitely. Meanwhile the pod keeps its devices.",
        do="Fix the problem that the message names, such as a missing CDI file or plugin. Then the container starts.",
        confirm="kubectl describe pod POD shows the container's state and the event Failed with the message.",
        issue=f"{_KUBERNETES}125579",
        patience=_POD_STATUS,
    ),
    NodeCheck(
        "pod-refused",
        "the kubelet has refused pods",
        find=pods.pods_refused,
        next="A kubelet decides about a pod only once: the pod stays Failed. The pod's owner may create new pods, "
        "which can be refused in the same way.",
        do="devicecore why 'MESSAGE' explains the message.",
        confirm="kubectl get pod POD -o jsonpath='{.status.reason}: {.status.message}'",
        issue="https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/",
    ),
)
"""All kinds of findings, in the order of the report."""

BY_CODE = {one.code: one for one in CHECKS}
"""The checks by the codes of their findings."""
