package main

import (
	"context"
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"
)

// A draManager knows the DeviceClasses of extended resources, and no claims.
type draManager struct {
	fwk.SharedDRAManager
	classes *extendedresourcecache.ExtendedResourceCache
}

func (m draManager) DeviceClassResolver() fwk.DeviceClassResolver { return m.classes }

func (m draManager) ResourceClaims() fwk.ResourceClaimTracker { return noClaims{} }

type noClaims struct{ fwk.ResourceClaimTracker }

func (noClaims) List() ([]*resourceapi.ResourceClaim, error) { return nil, nil }

type extendedAnswer struct {
	Classes      map[v1.ResourceName]string            `json:"classes"`
	Insufficient []v1.ResourceName                     `json:"insufficient"`
	Reason       string                                `json:"reason"`
	Claim        *resourceapi.ResourceClaim            `json:"claim"`
	Mappings     []v1.ContainerExtendedResourceRequest `json:"mappings"`
}

// extend asks the scheduler which claim it creates for the extended resources of a pod on a node. The scheduler has
// seen the classes in the given order.
func extend(_ context.Context, question []byte) (any, error) {
	var asked struct {
		Pod     *v1.Pod
		Node    *v1.Node
		Classes []*resourceapi.DeviceClass
		Names   []v1.ResourceName
	}
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	manager := draManager{classes: extendedresourcecache.NewExtendedResourceCache(klog.New(nil))}
	for _, one := range asked.Classes {
		manager.classes.OnAdd(one, true)
	}
	node := framework.NewNodeInfo()
	node.SetNode(asked.Node)
	answer := extendedAnswer{Classes: map[v1.ResourceName]string{}, Insufficient: []v1.ResourceName{}}
	for _, name := range asked.Names {
		if class := manager.classes.GetDeviceClass(name); class != nil {
			answer.Classes[name] = class.Name
		}
	}
	for _, one := range lacking(asked.Pod, node, manager) {
		answer.Insufficient = append(answer.Insufficient, one.ResourceName)
	}
	answer.Claim, answer.Mappings, answer.Reason = dynamicresources.ExtendedClaim(asked.Pod, node, manager)
	return answer, nil
}

func lacking(pod *v1.Pod, node fwk.NodeInfo, manager fwk.SharedDRAManager) []noderesources.InsufficientResource {
	options := noderesources.ResourceRequestsOptions{EnablePodLevelResources: true, EnableDRAExtendedResource: true}
	return noderesources.Fits(pod, node, manager, options)
}
