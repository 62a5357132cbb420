package memorymanager

import (
	"context"
	"fmt"

	cadvisorapi "github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
	tm "k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// Kubernetes' own functions are called through these functions, which record each question and its answer.

type asked = map[string]any

func caseIs(test tm.Named, row any) { tm.CaseIs(test, row) }

func stateJSON(s state.State) asked {
	return asked{"machineState": s.GetMachineState().Clone(), "entries": s.GetMemoryAssignments()}
}

func machineJSON(machine *cadvisorapi.MachineInfo) any {
	nodes := []any{}
	if machine == nil {
		return nodes
	}
	for _, one := range machine.Topology {
		pages := map[string]uint64{}
		for _, page := range one.HugePages {
			pages[fmt.Sprint(page.PageSize)] = page.NumPages
		}
		nodes = append(nodes, asked{"id": one.Id, "memory": one.Memory, "pages": pages})
	}
	return nodes
}

func podLevel() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.PodLevelResourceManagers)
}

func (p *staticPolicy) ask(s state.State, pod *v1.Pod, container *v1.Container, operation lifecycle.Operation) asked {
	reusable := []any{}
	for uid, groups := range p.initContainersReusableMemory {
		for nodes, resources := range groups {
			for name, size := range resources {
				reusable = append(reusable, asked{"uid": uid, "nodes": nodes, "resource": name, "size": size})
			}
		}
	}
	question := asked{
		"machine":    machineJSON(p.machineInfo),
		"reserved":   p.systemReserved,
		"state":      stateJSON(s),
		"reusable":   reusable,
		"podLevel":   podLevel(),
		"operation":  string(operation),
		"skipExtend": p.skipExtend,
	}
	if pod != nil {
		question["pod"] = pod.DeepCopy()
	}
	if container != nil {
		question["container"] = container.Name
	}
	return question
}

func getSystemReservedMemory(machine *cadvisorapi.MachineInfo, reservation v1.ResourceList, reserved []kubeletconfig.MemoryReservation) (systemReservedMemory, error) {
	found, err := getSystemReservedMemoryOfKubernetes(machine, reservation, reserved)
	recordReserved(machine, reservation, reserved, err)
	return found, err
}

func validateReservedMemory(machine *cadvisorapi.MachineInfo, reservation v1.ResourceList, reserved []kubeletconfig.MemoryReservation) error {
	err := validateReservedMemoryOfKubernetes(machine, reservation, reserved)
	recordReserved(machine, reservation, reserved, err)
	return err
}

func recordReserved(machine *cadvisorapi.MachineInfo, reservation v1.ResourceList, reserved []kubeletconfig.MemoryReservation, err error) {
	listed := []any{}
	for _, one := range reserved {
		listed = append(listed, asked{"numaNode": one.NumaNode, "limits": one.Limits})
	}
	tm.Recorded("memory-reserved", asked{"machine": machineJSON(machine), "reservation": reservation, "reserved": listed}, asked{"error": tm.ErrorJSON(err)})
}

func (p *staticPolicy) Start(logger klog.Logger, s state.State) error {
	question := p.ask(s, nil, nil, "")
	err := p.startOfKubernetes(logger, s)
	tm.Recorded("memory-start", question, asked{"state": stateJSON(s), "error": tm.ErrorJSON(err)})
	return err
}

func (p *staticPolicy) Allocate(ctx context.Context, s state.State, pod *v1.Pod, container *v1.Container, operation lifecycle.Operation) error {
	question := p.ask(s, pod, container, operation)
	question["hint"] = tm.HintJSON(p.affinity.GetAffinity(klog.FromContext(ctx), string(pod.UID), container.Name))
	err := p.allocateOfKubernetes(ctx, s, pod, container, operation)
	tm.Recorded("memory-allocate", question, asked{"state": stateJSON(s), "error": tm.ErrorJSON(err)})
	return err
}

func (p *staticPolicy) RemoveContainer(logger klog.Logger, s state.State, podUID string, name string) {
	question := p.ask(s, nil, nil, "")
	question["uid"], question["container"] = podUID, name
	p.removeOfKubernetes(logger, s, podUID, name)
	tm.Recorded("memory-remove", question, asked{"state": stateJSON(s)})
}

func (p *staticPolicy) GetTopologyHints(logger klog.Logger, s state.State, pod *v1.Pod, container *v1.Container, operation lifecycle.Operation) map[string][]tm.TopologyHint {
	question := p.ask(s, pod, container, operation)
	found := p.hintsOfKubernetes(logger, s, pod, container, operation)
	tm.Recorded("memory-hints", question, asked{"hints": tm.HintsJSON(found)})
	return found
}

func (p *staticPolicy) GetPodTopologyHints(logger klog.Logger, s state.State, pod *v1.Pod, operation lifecycle.Operation) map[string][]tm.TopologyHint {
	question := p.ask(s, pod, nil, operation)
	found := p.podHintsOfKubernetes(logger, s, pod, operation)
	tm.Recorded("memory-hints", question, asked{"hints": tm.HintsJSON(found)})
	return found
}
