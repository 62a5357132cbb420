package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	schedulerframework "k8s.io/kubernetes/pkg/scheduler/framework"
)

// A plugin prefers the smallest or the largest ids, starting with those that must be included. Or it offers no
// preference ("none"), or names half of what it is asked for ("short"), everything that is available ("all"), nothing
// ("nothing"), or devices that it may not choose ("foreign"). It is called without a socket.
type plugin struct {
	resource, socket string
	manner
	calls *[]any
}

// A manner is how a plugin answers. The step in which the plugin connects specifies it.
type manner struct {
	Prefers  string
	PreStart bool     // it requires PreStartContainer
	Fails    []string // the methods that fail
	Answer   struct { // to Allocate
		Envs, Annotations map[string]string
		Mounts, Devices   [][]string // the paths in the container and on the host, and "ro" or the permissions
		CDI               []string
	}
}

// called records a call, and fails if the plugin is supposed to.
func (p plugin) called(method string, told ...any) error {
	if p.calls != nil {
		*p.calls = append(*p.calls, append([]any{method, p.resource}, told...))
	}
	if slices.Contains(p.Fails, method) {
		return errors.New("no luck")
	}
	return nil
}

func sorted(ids []string) []string { return append([]string{}, slices.Sorted(slices.Values(ids))...) }

func (p plugin) API() pluginapi.DevicePluginClient { return p }
func (p plugin) Resource() string                  { return p.resource }
func (p plugin) SocketPath() string                { return p.socket }

func (p plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty, ...grpc.CallOption) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: p.Prefers != "none", PreStartRequired: p.PreStart}, nil
}

func (plugin) ListAndWatch(context.Context, *pluginapi.Empty, ...grpc.CallOption) (grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse], error) {
	return nil, fmt.Errorf("lists are reported by the steps of a history")
}

func (p plugin) GetPreferredAllocation(_ context.Context, in *pluginapi.PreferredAllocationRequest, _ ...grpc.CallOption) (*pluginapi.PreferredAllocationResponse, error) {
	answer := &pluginapi.PreferredAllocationResponse{}
	for _, request := range in.ContainerRequests {
		if err := p.called("GetPreferredAllocation", sorted(request.AvailableDeviceIDs), sorted(request.MustIncludeDeviceIDs), request.AllocationSize); err != nil {
			return nil, err
		}
		ids := slices.Sorted(slices.Values(request.MustIncludeDeviceIDs))
		others := slices.Sorted(slices.Values(request.AvailableDeviceIDs))
		if strings.HasPrefix(p.Prefers, "largest") {
			slices.Reverse(others)
		}
		for _, id := range others {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		if p.Prefers != "all" {
			ids = ids[:min(len(ids), int(request.AllocationSize))]
		}
		switch p.Prefers {
		case "short":
			ids = ids[:len(ids)/2]
		case "nothing":
			ids = nil
		case "foreign": // whatever its resource may have, from the last one
			_, name, _ := strings.Cut(p.resource, "/")
			ids = ids[:max(0, len(ids)-len(request.MustIncludeDeviceIDs))]
			for place := range ids {
				ids[place] = fmt.Sprintf("%s-%02d", name, 9-place)
			}
		}
		if p.Prefers == "largest and more" { // what was not requested, and everything twice
			ids = append(append([]string{"other"}, ids...), ids...)
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return answer, nil
}

func (p plugin) Allocate(_ context.Context, in *pluginapi.AllocateRequest, _ ...grpc.CallOption) (*pluginapi.AllocateResponse, error) {
	answer := &pluginapi.AllocateResponse{}
	for _, request := range in.ContainerRequests {
		if err := p.called("Allocate", sorted(request.DevicesIds)); err != nil {
			return nil, err
		}
		one := &pluginapi.ContainerAllocateResponse{Envs: p.Answer.Envs, Annotations: p.Answer.Annotations}
		for _, mount := range p.Answer.Mounts {
			one.Mounts = append(one.Mounts, &pluginapi.Mount{ContainerPath: mount[0], HostPath: mount[1], ReadOnly: mount[2] == "ro"})
		}
		for _, device := range p.Answer.Devices {
			one.Devices = append(one.Devices, &pluginapi.DeviceSpec{ContainerPath: device[0], HostPath: device[1], Permissions: device[2]})
		}
		for _, name := range p.Answer.CDI {
			one.CdiDevices = append(one.CdiDevices, &pluginapi.CDIDevice{Name: name})
		}
		answer.ContainerResponses = append(answer.ContainerResponses, one)
	}
	return answer, nil
}

func (p plugin) PreStartContainer(_ context.Context, in *pluginapi.PreStartContainerRequest, _ ...grpc.CallOption) (*pluginapi.PreStartContainerResponse, error) {
	return &pluginapi.PreStartContainerResponse{}, p.called("PreStartContainer", sorted(in.DevicesIds))
}

type jsonDevice struct {
	ID, Health string
	NUMA       *[]int64
}

type jsonContainer struct {
	Name          string
	Limits        map[string]int64
	RestartPolicy string
}

type jsonPod struct {
	UID, Name, Namespace       string
	InitContainers, Containers []jsonContainer
	Claimed                    [][]string // container and resource: what a claim gives
}

func (p jsonPod) pod() *v1.Pod {
	containers := func(given []jsonContainer) (all []v1.Container) {
		for _, one := range given {
			container := v1.Container{Name: one.Name, Resources: v1.ResourceRequirements{Limits: v1.ResourceList{}}}
			for name, count := range one.Limits {
				container.Resources.Limits[v1.ResourceName(name)] = *resource.NewQuantity(count, resource.DecimalSI)
			}
			container.Resources.Requests = container.Resources.Limits
			if one.RestartPolicy != "" {
				policy := v1.ContainerRestartPolicy(one.RestartPolicy)
				container.RestartPolicy = &policy
			}
			all = append(all, container)
		}
		return all
	}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(p.UID), Name: p.Name, Namespace: p.Namespace},
		Spec:       v1.PodSpec{InitContainers: containers(p.InitContainers), Containers: containers(p.Containers)},
	}
	if len(p.Claimed) > 0 {
		status := &v1.PodExtendedResourceClaimStatus{ResourceClaimName: p.Name}
		for _, one := range p.Claimed {
			status.RequestMappings = append(status.RequestMappings, v1.ContainerExtendedResourceRequest{ContainerName: one[0], ResourceName: one[1], RequestName: "r"})
		}
		pod.Status.ExtendedResourceClaimStatus = status
	}
	return pod
}

type step struct {
	Op       string
	Resource string
	manner
	Devices     []jsonDevice
	Seconds     float64
	Pod         jsonPod
	Container   string
	Affinity    *[]int
	UID         string
	PodUID      string `json:"pod_uid"`
	Allocatable map[string]int64
	Checkpoint  *string    // that a restarted kubelet finds
	Waits       bool       // a restarted kubelet does not know all pods yet
	IsUnusable  bool       `json:"is_unusable"` // that checkpoint, which is there until the next one is written
	Running     [][]string // the containers that run then: pod, container
	Stays       bool       // the older instance of a plugin that connects stays
	Newer       bool       // the newer instance of two ends
}

type deviceHistory struct {
	NUMANodes []int  `json:"numa_nodes"`
	Policy    string // of the topology manager; if empty, each step has the affinity
	Scope     string
	Closest   bool
	Distances topologymanager.NUMADistances
	Updates   bool // whether the answer contains the pods whose health updates the kubelet is told about
	Steps     []step
}

// A deviceNode is a kubelet's device manager and its surroundings.
type deviceNode struct {
	deviceHistory
	logger    klog.Logger
	directory string
	manager   *devicemanager.ManagerImpl
	scope     topologymanager.Scope
	active    map[string]*v1.Pod
	plugins   map[string]plugin
	older     map[string]plugin // where two instances are connected
	sockets   int
	unusable  string
	isReady   bool // all pods are known
	calls     []any
}

func (*deviceNode) AddSource(string) {}
func (n *deviceNode) AllReady() bool { return n.isReady }

// playDevices plays a history of a device manager, and answers each step.
func playDevices(ctx context.Context, question []byte) (any, error) {
	node := deviceNode{logger: klog.FromContext(ctx), active: map[string]*v1.Pod{}, isReady: true}
	if err := json.Unmarshal(question, &node.deviceHistory); err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp(memoryDirectory(), "oracle-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	node.directory = directory
	if err := node.start(); err != nil {
		return nil, err
	}
	answers := []any{}
	for number, one := range node.Steps {
		node.calls = []any{}
		answer, err := node.play(ctx, one)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", number, err)
		}
		if told, ok := answer.(map[string]any); ok && len(node.calls) > 0 {
			told["calls"] = node.calls
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

// memoryDirectory is a place for files that is not on a disk, because the kubelet waits for the disk at each write.
func memoryDirectory() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

func (n *deviceNode) start() (err error) {
	n.plugins, n.older = map[string]plugin{}, map[string]plugin{}
	policy, scope := n.Policy, n.Scope
	if policy == "" {
		policy = topologymanager.PolicyNone
	}
	if n.scope, err = newScope(policy, scope, &topologymanager.NUMAInfo{Nodes: n.NUMANodes, NUMADistances: n.Distances}, n.Closest); err != nil {
		return err
	}
	active := func() []*v1.Pod { return slices.Collect(maps.Values(n.active)) }
	if n.manager, err = devicemanager.NewInDirectory(n.logger, n.directory, n.NUMANodes, n.scope, active); err != nil {
		return err
	}
	addProvider(n.logger, n.scope, n.manager)
	return nil
}

func (n *deviceNode) play(ctx context.Context, one step) (any, error) {
	switch one.Op {
	case "connect":
		n.sockets++
		connected := plugin{one.Resource, fmt.Sprintf("%s/%d.sock", n.directory, n.sockets), one.manner, &n.calls}
		if err := n.manager.PluginConnected(ctx, one.Resource, connected); err != nil {
			return map[string]any{"ok": false, "error": err.Error()}, nil
		}
		before, isThere := n.plugins[one.Resource]
		n.plugins[one.Resource] = connected
		n.report(one)
		if isThere && one.Stays {
			n.older[one.Resource] = before
		} else if isThere { // the older instance ends when the newer one has registered
			disconnectPlugin(n.logger, n.manager, one.Resource, before.socket)
		}
		return n.withUpdates(map[string]any{"ok": true}), nil
	case "list_and_watch":
		n.report(one)
		return n.withCheckpoint(n.withUpdates(map[string]any{}))
	case "end": // one of two instances; the other one lists its devices
		gone := n.older[one.Resource]
		if one.Newer {
			gone, n.plugins[one.Resource] = n.plugins[one.Resource], gone
		}
		delete(n.older, one.Resource)
		disconnectPlugin(n.logger, n.manager, one.Resource, gone.socket)
		n.report(one)
		return n.withCheckpoint(n.withUpdates(map[string]any{}))
	case "status":
		pod := one.Pod.pod()
		for _, container := range pod.Spec.Containers {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, v1.ContainerStatus{Name: container.Name})
		}
		updateDeviceStatus(n.logger, n.manager, pod)
		answer := map[string]map[v1.ResourceName]map[v1.ResourceID]v1.ResourceHealthStatus{}
		for _, container := range pod.Status.ContainerStatuses {
			answer[container.Name] = map[v1.ResourceName]map[v1.ResourceID]v1.ResourceHealthStatus{}
			for _, row := range container.AllocatedResourcesStatus {
				answer[container.Name][row.Name] = map[v1.ResourceID]v1.ResourceHealthStatus{}
				for _, device := range row.Resources {
					answer[container.Name][row.Name][device.ResourceID] = device.Health
				}
			}
		}
		return map[string]any{"containers": answer}, nil
	case "disconnect":
		disconnectPlugin(n.logger, n.manager, one.Resource, n.plugins[one.Resource].socket)
		delete(n.plugins, one.Resource)
		return map[string]any{}, n.manager.Save(n.logger)
	case "advance_clock":
		n.manager.Age(time.Duration(one.Seconds * float64(time.Second)))
		return map[string]any{}, nil
	case "restart":
		if one.Checkpoint != nil {
			if err := os.WriteFile(filepath.Join(n.directory, "kubelet_internal_checkpoint"), []byte(*one.Checkpoint), 0o600); err != nil {
				return nil, err
			}
			n.unusable = ""
			if one.IsUnusable {
				n.unusable = *one.Checkpoint
			}
		}
		if err := n.start(); err != nil {
			return nil, err
		}
		n.isReady = !one.Waits
		n.manager.Found(n, one.Running)
		return n.withCheckpoint(map[string]any{})
	case "ready":
		n.isReady = true
		return map[string]any{}, n.manager.SweepAndSave(n.logger, func() { sweep(n.logger, n.manager) })
	case "start":
		return n.startContainer(ctx, one)
	case "allocate", "allocate_again":
		return n.allocate(ctx, one)
	case "hints":
		return n.hints(one), nil
	case "capacity":
		capacity, allocatable, removed := capacityOf(n.logger, n.manager)
		slices.Sort(removed)
		if removed == nil {
			removed = []string{}
		}
		return map[string]any{"capacity": counts(capacity), "allocatable": counts(allocatable), "removed": removed}, nil
	case "remove_pod":
		return map[string]any{}, n.remove(one.UID)
	case "sanitize":
		return n.sanitize(one)
	}
	return nil, fmt.Errorf("unknown op %q", one.Op)
}

// withUpdates adds the pods for which the manager has reported that the health of their devices changed.
func (n *deviceNode) withUpdates(answer map[string]any) map[string]any {
	pods := []string{}
	for {
		select {
		case update := <-n.manager.Updates():
			pods = append(pods, update.PodUIDs...)
		default:
			if n.Updates {
				answer["updates"] = sorted(pods)
			}
			return answer
		}
	}
}

func (n *deviceNode) report(one step) {
	response := &pluginapi.ListAndWatchResponse{}
	for _, listed := range one.Devices {
		device := &pluginapi.Device{ID: listed.ID, Health: listed.Health}
		if listed.NUMA != nil {
			device.Topology = &pluginapi.TopologyInfo{}
			for _, id := range *listed.NUMA {
				device.Topology.Nodes = append(device.Topology.Nodes, &pluginapi.NUMANode{ID: id})
			}
		}
		response.Devices = append(response.Devices, device)
	}
	n.manager.PluginListAndWatchReceiver(n.logger, one.Resource, response)
}

func (n *deviceNode) allocate(ctx context.Context, one step) (any, error) {
	pod := one.Pod.pod()
	n.active[one.Pod.UID] = pod
	containers := []any{}
	if n.Policy != "" {
		result := admitTo(ctx, n.scope, pod)
		if !result.Admit {
			answer := map[string]any{"ok": false, "reason": result.Reason, "message": result.Message}
			if one.Op == "allocate" {
				return answer, n.remove(one.Pod.UID)
			}
			return answer, nil
		}
		for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			containers = append(containers, map[string]any{"name": container.Name, "ok": true, "devices": n.devices(one.Pod.UID, container.Name)})
		}
		return n.withCheckpoint(map[string]any{"ok": true, "containers": containers})
	}
	hint := topologymanager.TopologyHint{}
	if one.Affinity != nil {
		mask, err := bitmask.NewBitMask(*one.Affinity...)
		if err != nil {
			return nil, err
		}
		hint = topologymanager.TopologyHint{NUMANodeAffinity: mask, Preferred: true}
	}
	n.manager.AffinityFrom(fixedAffinity(n.logger, &hint))
	for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		err := allocateContainer(ctx, n.manager, pod, &container)
		answer := map[string]any{"name": container.Name, "ok": err == nil, "devices": n.devices(one.Pod.UID, container.Name)}
		containers = append(containers, answer)
		if err != nil {
			answer["error"] = err.Error()
			if one.Op == "allocate" {
				err = n.remove(one.Pod.UID)
			} else {
				err = nil
			}
			return map[string]any{"ok": false, "containers": containers}, err
		}
	}
	return n.withCheckpoint(map[string]any{"ok": true, "containers": containers})
}

// startContainer answers with what a container gets when it starts.
func (n *deviceNode) startContainer(ctx context.Context, one step) (any, error) {
	pod := one.Pod.pod()
	for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		if container.Name != one.Container {
			continue
		}
		if n.Policy == "" {
			n.manager.AffinityFrom(fixedAffinity(n.logger, &topologymanager.TopologyHint{}))
		}
		found, err := n.manager.GetDeviceRunContainerOptions(ctx, pod, &container)
		if err != nil {
			return map[string]any{"ok": false, "error": err.Error()}, nil
		}
		answer := map[string]any{"ok": true, "options": nil}
		if found != nil {
			envs, annotations := map[string]string{}, map[string]string{}
			mounts, devices, cdi := [][]any{}, [][]string{}, []string{}
			for _, env := range found.Envs {
				envs[env.Name] = env.Value
			}
			for _, annotation := range found.Annotations {
				annotations[annotation.Name] = annotation.Value
			}
			for _, mount := range found.Mounts {
				mounts = append(mounts, []any{mount.ContainerPath, mount.HostPath, mount.ReadOnly})
			}
			for _, device := range found.Devices {
				devices = append(devices, []string{device.PathInContainer, device.PathOnHost, device.Permissions})
			}
			for _, device := range found.CDIDevices {
				cdi = append(cdi, device.Name)
			}
			answer["options"] = map[string]any{"envs": envs, "annotations": annotations, "mounts": mounts, "devices": devices, "cdi": cdi}
		}
		return n.withCheckpoint(answer)
	}
	return nil, fmt.Errorf("no container %q", one.Container)
}

// devices returns those of a container: resource -> id -> NUMA nodes or null.
func (n *deviceNode) devices(podUID, container string) map[string]map[string]any {
	held := map[string]map[string]any{}
	for name, instances := range n.manager.GetDevices(podUID, container) {
		held[name] = map[string]any{}
		for id, device := range instances {
			held[name][id] = nil
			if device.Topology != nil && len(device.Topology.Nodes) > 0 {
				var nodes []int64
				for _, node := range device.Topology.Nodes {
					nodes = append(nodes, node.ID)
				}
				slices.Sort(nodes)
				held[name][id] = nodes
			}
		}
	}
	return held
}

func (n *deviceNode) hints(one step) any {
	pod := one.Pod.pod()
	for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		if container.Name != one.Container {
			continue
		}
		answer := map[string]*[]jsonHint{}
		for name, listed := range containerHints(n.logger, n.manager, pod, &container) {
			answer[name] = nil
			if listed != nil {
				all := []jsonHint{}
				for _, hint := range listed {
					all = append(all, jsonOf(hint))
				}
				answer[name] = &all
			}
		}
		return answer
	}
	return nil
}

func (n *deviceNode) remove(uid string) error {
	delete(n.active, uid)
	if !n.isReady { // nobody knows that it is gone
		return nil
	}
	sweep(n.logger, n.manager)
	return n.manager.Save(n.logger)
}

func (n *deviceNode) sanitize(one step) (any, error) {
	node := schedulerframework.NewNodeInfo()
	list := v1.ResourceList{}
	for name, count := range one.Allocatable {
		list[v1.ResourceName(name)] = *resource.NewQuantity(count, resource.DecimalSI)
	}
	node.SetNode(&v1.Node{Status: v1.NodeStatus{Allocatable: list}})
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(one.PodUID)}}
	if err := n.manager.UpdatePluginResources(node, &lifecycle.PodAdmitAttributes{Pod: pod}); err != nil {
		return nil, err
	}
	answer := map[string]int64{}
	for name, count := range node.Allocatable.ScalarResources {
		answer[string(name)] = count
	}
	return map[string]any{"allocatable": answer}, nil
}

func counts(list v1.ResourceList) map[string]int64 {
	all := map[string]int64{}
	for name, quantity := range list {
		all[string(name)] = quantity.Value()
	}
	return all
}

type checkpointEntry struct {
	Pod       string              `json:"pod"`
	Container string              `json:"container"`
	Resource  string              `json:"resource"`
	Devices   map[string][]string `json:"devices"`
}

// withCheckpoint adds the checkpoint to an answer, as sets.
func (n *deviceNode) withCheckpoint(answer map[string]any) (any, error) {
	entries, registered := []checkpointEntry{}, map[string][]string{}
	var file struct {
		Data struct {
			PodDeviceEntries []struct {
				PodUID, ContainerName, ResourceName string
				DeviceIDs                           map[string][]string
			}
			RegisteredDevices map[string][]string
		}
	}
	text, err := os.ReadFile(filepath.Join(n.directory, "kubelet_internal_checkpoint"))
	if err == nil && string(text) == n.unusable {
		err = nil
	} else if err == nil {
		err = json.Unmarshal(text, &file)
	} else if os.IsNotExist(err) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	for _, entry := range file.Data.PodDeviceEntries {
		devices := map[string][]string{}
		for node, ids := range entry.DeviceIDs {
			devices[node] = sorted(ids)
		}
		entries = append(entries, checkpointEntry{entry.PodUID, entry.ContainerName, entry.ResourceName, devices})
	}
	slices.SortFunc(entries, func(a, b checkpointEntry) int {
		return slices.Compare([]string{a.Pod, a.Container, a.Resource}, []string{b.Pod, b.Container, b.Resource})
	})
	for name, ids := range file.Data.RegisteredDevices {
		registered[name] = sorted(ids)
	}
	answer["checkpoint"] = map[string]any{"entries": entries, "registered": registered}
	return answer, nil
}
