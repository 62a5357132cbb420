package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
	"k8s.io/utils/cpuset"
)

type numaStep struct {
	step
	Spec  *v1.Pod           `json:"object"` // as the API has it
	Files map[string]string // state files that a restarted kubelet finds
}

// A numaHistory is the history of a kubelet with devices, CPUs and memory.
type numaHistory struct {
	Machine  machine
	Gates    []string
	Topology struct {
		Policy, Scope string
		Closest       bool                          // the policy option prefer-closest-numa-nodes
		Distances     topologymanager.NUMADistances // from each NUMA node, indexed by the numbers of the others
	}
	CPU struct {
		Policy   string
		Options  map[string]string
		Reserved v1.ResourceList
		CPUs     string // that are reserved by their numbers
	}
	Memory struct {
		Policy   string
		Reserved v1.ResourceList // by Node Allocatable
		Nodes    []kubeletconfig.MemoryReservation
	}
	Steps []numaStep
	Timed bool // whether each admission is answered with its processor time alone
}

// A numaNode is a kubelet's three managers and their surroundings.
type numaNode struct {
	deviceNode
	asked  numaHistory
	fixed  *fixedStore
	cpus   cpumanager.Manager
	memory memorymanager.Manager
}

// A fixedStore is a topology manager that has chosen the same hint for every container.
type fixedStore struct {
	topologymanager.Store
	hint topologymanager.TopologyHint
}

// playNUMA plays a history of the three managers, and answers each step.
func playNUMA(ctx context.Context, question []byte) (any, error) {
	node := numaNode{deviceNode: deviceNode{logger: klog.FromContext(ctx), active: map[string]*v1.Pod{}, isReady: true}}
	if err := json.Unmarshal(question, &node.asked); err != nil {
		return nil, err
	}
	gates := utilfeature.DefaultFeatureGate.(featuregate.MutableFeatureGate)
	wanted := map[string]bool{"CPUManagerPolicyAlphaOptions": false, "CPUManagerPolicyBetaOptions": true}
	for _, name := range node.asked.Gates {
		wanted[name] = true
	}
	if err := gates.SetFromMap(wanted); err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp(memoryDirectory(), "oracle-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	node.directory = directory
	answers := []any{node.begin(ctx, nil)}
	for number, one := range node.asked.Steps {
		answer, err := node.playOne(ctx, one)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", number, err)
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

// begin starts the kubelet, and answers with what it has then.
func (n *numaNode) begin(ctx context.Context, files map[string]string) map[string]any {
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(n.directory, name), []byte(text), 0o600); err != nil {
			return map[string]any{"ok": false, "error": err.Error()}
		}
	}
	if err := n.startAll(ctx); err != nil {
		n.cpus, n.memory = nil, nil
		return map[string]any{"ok": false, "error": err.Error()}
	}
	return n.held(map[string]any{"ok": true, "allocatable": n.cpus.GetAllocatableCPUs().String()})
}

func (n *numaNode) startAll(ctx context.Context) error {
	asked := n.asked.Topology
	n.deviceHistory = deviceHistory{Policy: asked.Policy, Scope: asked.Scope, Closest: asked.Closest, Distances: asked.Distances}
	info := n.asked.Machine.info()
	for _, one := range info.Topology {
		n.NUMANodes = append(n.NUMANodes, one.Id)
	}
	if err := n.deviceNode.start(); err != nil {
		return err
	}
	var store topologymanager.Store = n.scope
	n.fixed = nil
	if n.Policy == "" {
		n.fixed = &fixedStore{Store: n.scope}
		store = n.fixed
	}
	reserved, err := cpuset.Parse(n.asked.CPU.CPUs)
	if err != nil {
		return err
	}
	cpu, memory := n.asked.CPU, n.asked.Memory
	if n.cpus, err = cpumanager.NewManager(n.logger, cpu.Policy, cpu.Options, time.Hour, info, reserved, cpu.Reserved, n.directory, store); err != nil {
		return err
	}
	if n.memory, err = memorymanager.NewManager(n.logger, memory.Policy, info, memory.Reserved, memory.Nodes, n.directory, store); err != nil {
		return err
	}
	active := func() []*v1.Pod { return slices.Collect(maps.Values(n.active)) }
	if err = cpumanager.StartAlone(n.logger, n.cpus, active); err != nil {
		return err
	}
	if err = n.memory.Start(ctx, active, ready{}, nil, nil, containermap.NewContainerMap()); err != nil {
		return err
	}
	addProvider(n.logger, n.scope, n.cpus)
	addProvider(n.logger, n.scope, n.memory)
	return nil
}

// ready is a state in which all pod sources are ready.
type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

func (n *numaNode) playOne(ctx context.Context, one numaStep) (any, error) {
	if one.Op == "restart" {
		return n.begin(ctx, one.Files), nil
	}
	if n.cpus == nil {
		return map[string]any{"ok": false, "error": "the kubelet does not run"}, nil
	}
	switch one.Op {
	case "admit":
		return n.admit(ctx, one)
	case "pod_hints":
		pod := n.pod(one)
		all := map[string]any{}
		for name, provider := range map[string]topologymanager.HintProvider{"cpu": n.cpus, "memory": n.memory} {
			given := map[string]hints{"": podHints(n.logger, provider, pod)}
			for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
				given[container.Name] = providerHints(n.logger, provider, pod, &container)
			}
			all[name] = jsonHints(given)
		}
		return all, nil
	case "start_container":
		pod := n.active[one.UID]
		if pod == nil {
			return n.held(map[string]any{}), nil
		}
		for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			if container.Name == one.Container {
				n.memory.AddContainer(n.logger, pod, &container, one.UID+"-"+one.Container)
			}
		}
		return n.held(map[string]any{}), nil
	case "remove":
		if err := n.forget(one.UID); err != nil {
			return nil, err
		}
		return n.held(map[string]any{}), nil
	}
	return n.deviceNode.play(ctx, one.step)
}

func (n *numaNode) pod(one numaStep) *v1.Pod {
	pod := one.Spec.DeepCopy()
	corev1.SetObjectDefaults_Pod(pod)
	return pod
}

func (n *numaNode) admit(ctx context.Context, one numaStep) (any, error) {
	pod := n.pod(one)
	uid := string(pod.UID)
	n.active[uid] = pod
	answer := map[string]any{"ok": true}
	if n.fixed != nil {
		n.fixed.hint = topologymanager.TopologyHint{Preferred: true}
		if one.Affinity != nil {
			mask, err := bitmask.NewBitMask(*one.Affinity...)
			if err != nil {
				return nil, err
			}
			n.fixed.hint = topologymanager.TopologyHint{NUMANodeAffinity: mask, Preferred: true}
		}
	}
	began := processor()
	result := admitTo(ctx, n.scope, pod)
	answer["ok"] = result.Admit
	if n.asked.Timed {
		answer["seconds"] = (processor() - began).Seconds()
		return answer, nil
	}
	if !result.Admit {
		answer["reason"], answer["message"] = result.Reason, result.Message
		if err := n.forget(uid); err != nil {
			return nil, err
		}
	}
	devices := map[string]any{}
	for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		if held := n.devices(uid, container.Name); len(held) > 0 {
			devices[container.Name] = held
		}
	}
	answer["devices"] = devices
	return n.held(answer), nil
}

func (n *numaNode) forget(uid string) error {
	delete(n.active, uid)
	cpumanager.Sweep(n.logger, n.cpus)
	memorymanager.Sweep(n.logger, n.memory)
	return n.deviceNode.remove(uid)
}

// held adds the two state files to an answer.
func (n *numaNode) held(answer map[string]any) map[string]any {
	for _, name := range []string{"cpu_manager_state", "memory_manager_state"} {
		text, err := os.ReadFile(filepath.Join(n.directory, name))
		if err != nil {
			answer[name] = err.Error()
			continue
		}
		answer[name] = string(text)
	}
	return answer
}

func jsonHints(given map[string]hints) map[string]map[string]*[]jsonHint {
	all := map[string]map[string]*[]jsonHint{}
	for container, resources := range given {
		all[container] = map[string]*[]jsonHint{}
		for name, listed := range resources {
			all[container][name] = nil
			if listed != nil {
				found := []jsonHint{}
				for _, hint := range listed {
					found = append(found, jsonOf(hint))
				}
				all[container][name] = &found
			}
		}
	}
	return all
}
