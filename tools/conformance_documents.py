"""What Kubernetes' documents require of device plugins and drivers, and which checks there are for each requirement.

Law: each row names checks that exist, or gives a reason. `make docs` generates docs/conformance/documents.md from these
rows.
"""

from collections.abc import Mapping, Sequence

from attrs import frozen

DEVICE_PLUGINS = "Device Plugins (kubernetes.io)"
PLUGIN_API = "api.proto of deviceplugin/v1beta1, and KEP-3573"
DRIVERS = "KEP-4381: DRA with structured parameters"
HELPER = "The kubeletplugin helper, and api.proto of dra/v1"
HEALTH = "KEP-4680: resource health"
COUNTERS = "KEP-4815: partitionable devices"
EXTENDED = "KEP-5004: extended resources by DRA"
BINDING = "KEP-5007: binding conditions"
TAINTS = "KEP-5055: device taints"
SHARES = "KEP-5075: consumable capacity"
METADATA = "KEP-5304: attributes in containers"

NOT_OF_A_PROGRAM = "this concerns the deployment, but a check sees only a program"


@frozen
class Row:
    """A requirement of a document, abbreviated, with the `checks` for it or the reason why there are no checks."""

    document: str
    sentence: str
    checks: Sequence[str] = ()
    reason: str = ""


def _rows(document: str, sentences: Mapping[str, str]) -> list[Row]:
    """Return a row for each sentence. A value that starts with `-` is a reason; any other value names checks."""
    return [
        Row(document, sentence, reason=text[1:].strip())
        if text.startswith("-")
        else Row(document, sentence, tuple(text.split()))
        for sentence, text in sentences.items()
    ]


ROWS: Sequence[Row] = (
    *_rows(
        DEVICE_PLUGINS,
        {
            "A plugin MUST start serving before it registers.": "serves-before-it-registers waits-for-a-late-kubelet",
            "The resource name needs to be vendor-domain/resourcetype.": "registers-an-extended-resource-name",
            "A plugin needs to send its socket's name and its API version.": "registers-an-endpoint-in-the-directory "
            "registers-a-supported-version",
            "Flags for optional calls should be in DevicePluginOptions.": "answers-options "
            "answers-the-options-it-registers answers-get-preferred-allocation answers-pre-start-container",
            "Devices cannot be shared between containers.": "gives-each-device-its-own-nodes gives-nodes-by-id "
            "keeps-calls-apart keeps-its-answers",
            "A plugin keeps monitoring health and reports any change.": "reports-a-change-of-health "
            "reports-health-after-a-kubelet-restart reports-a-change-while-the-kubelet-was-away "
            "reports-a-recovery-of-health reports-a-later-change-of-health reports-a-sick-device-after-a-kill "
            "keeps-its-devices",
            "Allocate returns what the runtime needs for the allocated devices.": "allocates-each-device "
            "gives-the-nodes-of-each-device gives-the-mounts-of-each-device gives-the-variables-of-each-device "
            "gives-absolute-paths gives-existing-device-nodes gives-valid-cdi-names-and-permissions "
            "allocates-while-a-device-is-sick allocates-a-device-that-has-recovered",
            "A plugin is expected to notice kubelet restarts, and to register again.": ""
            "returns-after-the-directory-is-emptied returns-to-a-kubelet-that-was-away "
            "returns-after-two-restarts returns-again-after-a-kubelet-restart allocates-after-a-kubelet-restart "
            "pre-starts-after-a-kubelet-restart returns-with-all-its-resources lists-devices-soon",
            "The plugin directory must be mounted, in a privileged context.": f"-{NOT_OF_A_PROGRAM}",
            "A plugin should support several versions of the API.": "-there is one version, v1beta1",
        },
    ),
    *_rows(
        PLUGIN_API,
        {
            "A plugin is expected to terminate if its registration fails.": "is-patient-with-a-kubelet-that-refuses "
            "ends-or-registers-after-a-refusal stays-up",
            "A device id is unique and has at most 63 characters.": "lists-unique-ids lists-short-ids keeps-its-ids",
            "Health is Healthy or Unhealthy.": "lists-known-health spells-healthy-as-kubelets-do",
            "ListAndWatch returns the new list after each change.": "keeps-its-stream-open lists-devices-in-time "
            "keeps-its-devices sends-few-lists lists-fit-into-a-message",
            "A device has no topology if its NUMA nodes are unknown.": "numbers-numa-nodes-from-zero "
            "keeps-its-numa-nodes",
            "A response contains one answer for each container.": "answers-once-per-container "
            "answers-each-of-two-containers",
            "Allocating a device that is gone should fail.": "refuses-an-unknown-device",
            "The preferred devices are available, are as many as requested, and include the required ones.": ""
            "prefers-only-what-is-available prefers-as-many-as-asked prefers-what-it-must-include "
            "prefers-while-a-device-is-sick",
            "PreStartContainer is called before each container start.": "answers-pre-start-container "
            "pre-starts-after-a-kill pre-starts-after-sigterm pre-starts-while-a-device-is-sick",
            "Kubernetes restarts plugins when they fail.": "starts-where-it-was-killed "
            "gives-the-same-nodes-after-a-restart leaves-sockets-of-others-alone ends-on-sigterm",
        },
    ),
    *_rows(
        DRIVERS,
        {
            "A driver must double-check that allocated devices are available.": "refuses-an-unknown-device "
            "refuses-a-device-in-use refuses-a-device-that-has-gone",
            "A driver must not rely on NodeUnprepareResources being called.": ""
            "prepares-what-is-allocated-now unprepares-a-deleted-claim late-prepare-leaves-nothing",
            "A driver's name must be a DNS subdomain.": "has-a-valid-name has-a-name-in-lower-case",
            "Device names are unique in their pool.": "names-each-device-once",
            "After a change, a driver must change the generation in all slices of the pool.": ""
            "keeps-a-changed-pool-whole completes-its-pools completes-its-pools-after-a-restart",
            "The pool name must be unique in the cluster.": "keeps-nodes-apart",
            "A driver's own attributes must be listed without its name as their domain.": ""
            "names-attributes-without-its-domain",
            "A driver SHOULD use standard attributes.": "spells-standard-attributes-as-others-do",
            "A driver must use its own finalizer.": "leaves-claims-as-they-are",
            "Each plugin is required to get the claim with its own credentials.": "refuses-a-replaced-claim "
            "refuses-a-missing-claim refuses-a-claim-that-is-not-allocated",
            "A driver should implement v1 and v1beta1.": "announces-known-versions announces-v1-first "
            "answers-the-same-through-v1beta1",
            "A response contains devices or an error for each claim.": "answers-for-each-prepared-claim "
            "answers-for-each-unprepared-claim separates-good-claims-from-bad-ones reports-what-it-cannot-prepare",
            "A plugin MUST return certain gRPC codes.": "-a kubelet ignores the code, and treats all errors alike",
            "A driver's service account must have certain permissions.": f"-{NOT_OF_A_PROGRAM}",
            "A driver must not be removed while it is in use.": f"-{NOT_OF_A_PROGRAM}",
        },
    ),
    *_rows(
        HELPER,
        {
            "Preparing must be idempotent.": "prepare-is-idempotent prepares-the-same-after-a-restart "
            "prepares-claims-after-sigterm prepares-claims-after-a-new-registration",
            "Unpreparing must be idempotent, and undo all of the preparation.": "unprepare-is-idempotent "
            "unprepares-an-unknown-claim frees-the-device removes-cdi-devices frees-devices-after-a-kill "
            "frees-devices-after-a-reboot",
            "A driver should check that a device is not in use.": "refuses-a-device-in-use "
            "refuses-a-device-in-use-after-a-restart refuses-a-device-that-is-partly-in-use",
            "Claims may have been deleted when they are unprepared.": "unprepares-a-deleted-claim "
            "unprepares-a-claim-that-was-deleted-meanwhile unprepares-without-the-api-server",
            "CDI ids must be unique to a claim if the container edits are.": "gives-new-claims-new-cdi-devices "
            "keeps-the-cdi-devices-of-other-claims",
            "Calls run concurrently unless the driver requests serialized calls.": "prepares-claims-at-the-same-time "
            "survives-prepare-and-unprepare-at-the-same-time",
            "In a rolling update, instances share claims and slices.": "shares-its-claims-between-instances "
            "serializes-the-calls-of-two-instances does-not-fight-over-slices keeps-cdi-devices-in-a-rolling-update",
            "Pool and device names are required in responses.": "answers-with-pool-and-device-names "
            "answers-with-the-requests-of-each-device",
        },
    ),
    *_rows(
        HEALTH,
        {
            "The health service is optional.": "survives-being-asked-for-health",
            "Each health report should list all devices.": "reports-the-health-of-each-device "
            "reports-the-health-of-published-devices",
            "Pool and device names are required, and health has a defined value.": "reports-known-states-of-health",
            "last_updated is required.": "reports-when-it-looked",
            "A health report is outdated after its time limit.": "repeats-its-reports-of-health "
            "reports-limits-that-count",
            "The health stream reports changes.": "keeps-the-health-stream-open reports-no-change-without-a-reason",
            "The driver remains responsible for tainting unhealthy devices.": "taints-unhealthy-devices",
        },
    ),
    *_rows(
        COUNTERS,
        {
            "The names of counters and counter sets are DNS labels and unique in the pool.": "publishes-valid-slices",
            "A device is available only if every counter that it consumes suffices.": "publishes-devices-for-claims",
            "Devices that share counters are not all available at once.": "prepares-each-device "
            "prepares-many-devices-in-one-claim prepares-claims-at-the-same-time",
            "Slices with perDeviceNodeSelection must be published by the control plane.": "names-its-node",
        },
    ),
    *_rows(
        EXTENDED,
        {
            "The scheduler creates the claim for a pod's extended resources.": "prepares-claims-of-any-form",
            "Neither the driver API nor device plugins change.": "-nothing is required of a program",
        },
    ),
    *_rows(
        BINDING,
        {
            "A device names its binding conditions, and a controller sets them.": "publishes-valid-slices "
            "sets-the-binding-conditions-of-its-devices",
            "The scheduler waits for the conditions before it binds the pod to the node.": "-a kubelet prepares only "
            "claims of pods that are bound, so a driver does not notice",
        },
    ),
    *_rows(
        TAINTS,
        {
            "A driver publishes taints for its devices.": "publishes-valid-slices publishes-a-valid-change "
            "publishes-devices-that-come-back",
            "A taint with the effect NoExecute evicts running pods.": "evicts-no-pods-at-a-restart",
            "A driver should use its name as the domain of its taints' keys.": ""
            "-a key with a different domain breaks nothing",
            "A claim that tolerates a taint may get the device.": "prepares-claims-of-any-form",
        },
    ),
    *_rows(
        SHARES,
        {
            "Each share has an id, which belongs to one allocation.": "answers-with-the-share-of-each-claim",
            "Several shares of a device are in use at the same time.": "separates-shares-of-a-device",
            "A driver should define a request policy.": "-a device without a policy is valid and is used as a whole",
        },
    ),
    *_rows(
        METADATA,
        {
            "Metadata files exist when a container mounts them.": "mounts-what-it-has-made "
            "keeps-cdi-devices-after-a-kill keeps-prepared-claims-as-they-are",
            "The files of each claim and request have a path of their own.": "gives-each-variable-and-path-once",
            "Metadata files contain the request's devices, with pool, name and attributes.": ""
            "describes-its-devices-in-metadata",
            "Metadata files are removed with the claim.": "removes-cdi-devices leaves-no-files-of-a-claim",
            "Containers should handle missing files.": "-this concerns the container",
        },
    ),
)
"""All rows, in the order of the documents."""
