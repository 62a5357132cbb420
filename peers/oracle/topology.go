package main

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
)

type hints = map[string][]topologymanager.TopologyHint

// fixedHints is a hint provider with hints by container name; those for the whole pod are under the empty name.
type fixedHints map[string]hints

// A jsonHint is [nodes, preferred]; nodes is null for any.
type jsonHint struct {
	Nodes     *[]int
	Preferred bool
}

func (h *jsonHint) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&h.Nodes, &h.Preferred})
}

func (h jsonHint) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.Nodes, h.Preferred}) }

func (h jsonHint) hint() (topologymanager.TopologyHint, error) {
	if h.Nodes == nil {
		return topologymanager.TopologyHint{Preferred: h.Preferred}, nil
	}
	mask, err := bitmask.NewBitMask(*h.Nodes...)
	return topologymanager.TopologyHint{NUMANodeAffinity: mask, Preferred: h.Preferred}, err
}

func jsonOf(hint topologymanager.TopologyHint) jsonHint {
	answer := jsonHint{Preferred: hint.Preferred}
	if hint.NUMANodeAffinity != nil {
		nodes := hint.NUMANodeAffinity.GetBits()
		if nodes == nil {
			nodes = []int{}
		}
		answer.Nodes = &nodes
	}
	return answer
}

func hintsOf(given map[string]*[]jsonHint) (hints, error) {
	all := hints{}
	for resource, listed := range given {
		all[resource] = nil
		if listed == nil {
			continue
		}
		all[resource] = []topologymanager.TopologyHint{}
		for _, one := range *listed {
			hint, err := one.hint()
			if err != nil {
				return nil, err
			}
			all[resource] = append(all[resource], hint)
		}
	}
	return all, nil
}

type topologyQuestion struct {
	NUMANodes  []int `json:"numa_nodes"`
	Policy     string
	Scope      string
	Closest    bool                          // the policy option prefer-closest-numa-nodes
	Distances  topologymanager.NUMADistances // from each NUMA node, indexed by the numbers of the others
	Containers []string
	Providers  []map[string]map[string]*[]jsonHint // container -> resource -> hints
}

// newScope returns the kubelet's scope object for a policy and a scope.
func newScope(policyName, scopeName string, info *topologymanager.NUMAInfo, closest bool) (topologymanager.Scope, error) {
	options := topologymanager.PolicyOptions{PreferClosestNUMA: closest}
	var policy topologymanager.Policy
	switch policyName {
	case topologymanager.PolicyNone:
		return topologymanager.NewNoneScope(), nil
	case topologymanager.PolicyBestEffort:
		policy = topologymanager.NewBestEffortPolicy(info, options)
	case topologymanager.PolicyRestricted:
		policy = topologymanager.NewRestrictedPolicy(info, options)
	case topologymanager.PolicySingleNumaNode:
		policy = topologymanager.NewSingleNumaNodePolicy(info, options)
	default:
		return nil, fmt.Errorf("unknown policy %q", policyName)
	}
	switch scopeName {
	case topologymanager.ContainerTopologyScope:
		return topologymanager.NewContainerScope(policy), nil
	case topologymanager.PodTopologyScope:
		return topologymanager.NewPodScope(policy), nil
	}
	return nil, fmt.Errorf("unknown scope %q", scopeName)
}

type topologyAnswer struct {
	Admit      bool                `json:"admit"`
	Reason     string              `json:"reason"`
	Message    string              `json:"message"`
	Affinities map[string]jsonHint `json:"affinities"` // of the containers that were admitted
	Merged     map[string]merged   `json:"merged"`
}

type merged struct {
	Hint  jsonHint `json:"hint"`
	Admit bool     `json:"admit"`
}

// mergeHints admits a pod, and merges the hints for each container and for the whole pod.
func mergeHints(ctx context.Context, question []byte) (any, error) {
	var asked topologyQuestion
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	logger := klog.FromContext(ctx)
	scope, err := newScope(asked.Policy, asked.Scope, &topologymanager.NUMAInfo{Nodes: asked.NUMANodes, NUMADistances: asked.Distances}, asked.Closest)
	if err != nil {
		return nil, err
	}
	var providers []fixedHints
	for _, given := range asked.Providers {
		provider := fixedHints{}
		for container, listed := range given {
			if provider[container], err = hintsOf(listed); err != nil {
				return nil, err
			}
		}
		providers = append(providers, provider)
		addProvider(logger, scope, provider)
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID("pod"), Name: "pod", Namespace: "default"}}
	answer := topologyAnswer{Affinities: map[string]jsonHint{}, Merged: map[string]merged{}}
	for _, name := range append(asked.Containers, "") {
		if name != "" {
			pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: name})
		}
		if asked.Policy == topologymanager.PolicyNone {
			continue
		}
		var all []map[string][]topologymanager.TopologyHint
		for _, provider := range providers {
			all = append(all, provider[name])
		}
		hint, admit := scope.GetPolicy().Merge(logger, all)
		answer.Merged[name] = merged{jsonOf(hint), admit}
	}
	result := admitTo(ctx, scope, pod)
	answer.Admit, answer.Reason, answer.Message = result.Admit, result.Reason, result.Message
	for _, name := range asked.Containers {
		if hint := affinityOf(logger, scope, "pod", name); hint != (topologymanager.TopologyHint{}) {
			answer.Affinities[name] = jsonOf(hint)
		}
	}
	return answer, nil
}

type optionsQuestion struct {
	NUMANodes map[int][]uint64 `json:"numa_nodes"` // with the distances from each; null if they are not known
	Policy    string
	Scope     string
	Options   map[string]string
}

// startTopologyManager answers whether a kubelet starts with the options of a policy.
func startTopologyManager(ctx context.Context, question []byte) (any, error) {
	var asked optionsQuestion
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	_, err := newTopologyManager(klog.FromContext(ctx), asked)
	return map[string]bool{"ok": err == nil}, nil
}
