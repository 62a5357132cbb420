package cpumanager

import (
	v1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	tm "k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

// Kubernetes' own functions are called through these functions, which record each question and its answer.

type asked = map[string]any

func caseIs(test tm.Named, row any) { tm.CaseIs(test, row) }

func topologyJSON(topo *topology.CPUTopology) asked {
	return asked{"cpus": topo.NumCPUs, "cores": topo.NumCores, "details": topo.CPUDetails}
}

func stateJSON(s state.State) asked {
	entries := map[string]map[string]string{}
	for pod, containers := range s.GetCPUAssignments() {
		entries[pod] = map[string]string{}
		for name, set := range containers {
			entries[pod][name] = set.String()
		}
	}
	return asked{"shared": s.GetDefaultCPUSet().String(), "entries": entries}
}

func (p *staticPolicy) ask(s state.State, pod *v1.Pod, container *v1.Container, operation lifecycle.Operation) asked {
	reusable := map[string]string{}
	for uid, set := range p.cpusToReuse {
		reusable[uid] = set.String()
	}
	question := asked{
		"topology":  topologyJSON(p.topology),
		"options":   p.options,
		"reserved":  p.reservedCPUs.String(),
		"state":     stateJSON(s),
		"reusable":  reusable,
		"podLevel":  utilfeature.DefaultFeatureGate.Enabled(features.PodLevelResourceManagers),
		"operation": string(operation),
	}
	if pod != nil {
		question["pod"] = pod.DeepCopy()
	}
	if container != nil {
		question["container"] = container.Name
	}
	return question
}

func takeByTopologyNUMAPacked(logger klog.Logger, topo *topology.CPUTopology, available cpuset.CPUSet, count int, strategy CPUSortingStrategy, byCache bool) (cpuset.CPUSet, error) {
	found, err := takeByTopologyNUMAPackedOfKubernetes(logger, topo, available, count, strategy, byCache)
	tm.Recorded("packed", asked{"topology": topologyJSON(topo), "available": available.String(), "count": count, "spreads": strategy == CPUSortingStrategySpread, "byCache": byCache}, asked{"cpus": found.String(), "error": tm.ErrorJSON(err)})
	return found, err
}

func takeByTopologyNUMADistributed(logger klog.Logger, topo *topology.CPUTopology, available cpuset.CPUSet, count, group int, strategy CPUSortingStrategy, bySocket bool) (cpuset.CPUSet, error) {
	found, err := takeByTopologyNUMADistributedOfKubernetes(logger, topo, available, count, group, strategy, bySocket)
	tm.Recorded("distributed", asked{"topology": topologyJSON(topo), "available": available.String(), "count": count, "group": group, "spreads": strategy == CPUSortingStrategySpread, "bySocket": bySocket}, asked{"cpus": found.String(), "error": tm.ErrorJSON(err)})
	return found, err
}

// NewStaticPolicyOptions is Kubernetes' function of that name.
func NewStaticPolicyOptions(given map[string]string) (StaticPolicyOptions, error) {
	found, err := newStaticPolicyOptionsOfKubernetes(given)
	question := asked{
		"given": given,
		"alpha": utilfeature.DefaultFeatureGate.Enabled(features.CPUManagerPolicyAlphaOptions),
		"beta":  utilfeature.DefaultFeatureGate.Enabled(features.CPUManagerPolicyBetaOptions),
	}
	tm.Recorded("cpu-options", question, asked{"options": found, "error": tm.ErrorJSON(err)})
	return found, err
}

// ValidateStaticPolicyOptions is Kubernetes' function of that name.
func ValidateStaticPolicyOptions(options StaticPolicyOptions, topo *topology.CPUTopology, store tm.Store) error {
	err := validateStaticPolicyOptionsOfKubernetes(options, topo, store)
	policy := "none"
	if options.AlignBySocket { // Kubernetes asks for it only in this case
		policy = store.GetPolicy().Name()
	}
	details := map[string]int{"sockets": topo.NumSockets, "nodes": topo.NumNUMANodes}
	tm.Recorded("cpu-fitting-options", asked{"options": options, "counts": details, "policy": policy}, asked{"error": tm.ErrorJSON(err)})
	return err
}

func (p *staticPolicy) podGuaranteedCPUs(logger klog.Logger, pod *v1.Pod) int {
	count := p.podGuaranteedOfKubernetes(logger, pod)
	question := asked{"pod": pod.DeepCopy(), "podLevel": utilfeature.DefaultFeatureGate.Enabled(features.PodLevelResourceManagers)}
	tm.Recorded("cpu-request", question, asked{"count": count})
	return count
}

func (p *staticPolicy) Start(logger klog.Logger, s state.State) error {
	question := p.ask(s, nil, nil, "")
	err := p.startOfKubernetes(logger, s)
	tm.Recorded("cpu-start", question, asked{"state": stateJSON(s), "error": tm.ErrorJSON(err)})
	return err
}

func (p *staticPolicy) Allocate(logger klog.Logger, s state.State, pod *v1.Pod, container *v1.Container, operation lifecycle.Operation) error {
	question := p.ask(s, pod, container, operation)
	question["hint"] = tm.HintJSON(p.affinity.GetAffinity(logger, string(pod.UID), container.Name))
	err := p.allocateOfKubernetes(logger, s, pod, container, operation)
	tm.Recorded("cpu-allocate", question, asked{"state": stateJSON(s), "error": tm.ErrorJSON(err)})
	return err
}

func (p *staticPolicy) RemoveContainer(logger klog.Logger, s state.State, podUID string, name string) error {
	question := p.ask(s, nil, nil, "")
	question["uid"], question["container"] = podUID, name
	err := p.removeOfKubernetes(logger, s, podUID, name)
	tm.Recorded("cpu-remove", question, asked{"state": stateJSON(s), "error": tm.ErrorJSON(err)})
	return err
}

func (p *staticPolicy) GetTopologyHints(logger klog.Logger, s state.State, pod *v1.Pod, container *v1.Container, operation lifecycle.Operation) map[string][]tm.TopologyHint {
	question := p.ask(s, pod, container, operation)
	found := p.hintsOfKubernetes(logger, s, pod, container, operation)
	tm.Recorded("cpu-hints", question, asked{"hints": tm.HintsJSON(found)})
	return found
}

func (p *staticPolicy) GetPodTopologyHints(logger klog.Logger, s state.State, pod *v1.Pod, operation lifecycle.Operation) map[string][]tm.TopologyHint {
	question := p.ask(s, pod, nil, operation)
	found := p.podHintsOfKubernetes(logger, s, pod, operation)
	tm.Recorded("cpu-hints", question, asked{"hints": tm.HintsJSON(found)})
	return found
}
