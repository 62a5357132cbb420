package dynamicresources

import (
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
)

// ExtendedClaim returns the claim that the plugin creates for the extended resources of a pod on a node, with the
// requests that its containers get, or the reason why it refuses the node. The claim is nil if the plugin creates
// none.
func ExtendedClaim(pod *v1.Pod, node fwk.NodeInfo, manager fwk.SharedDRAManager) (*resourceapi.ResourceClaim, []v1.ContainerExtendedResourceRequest, string) {
	plugin := &DynamicResources{enabled: true, draManager: manager, fts: feature.Features{EnableDRAExtendedResource: true}}
	logger, state := klog.New(nil), &stateData{}
	special, status := plugin.preFilterExtendedResources(pod, logger, state)
	if status != nil {
		return nil, nil, status.Message()
	}
	state.claims = newClaimStore(nil, special, nil)
	claim, mappings, status := plugin.filterExtendedResources(state, pod, node, logger)
	if status != nil {
		return nil, nil, status.Message()
	}
	return claim, mappings, ""
}
