package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The annotations of a pod that say what its containers would do. Our own nodes use the same ones.
const (
	runFor    = "devicecore.io/run-for"    // the containers end after this time, with code 0
	stopAfter = "devicecore.io/stop-after" // the containers continue for this time when they are stopped
	saysWhat  = "devicecore.io/containers" // what goes wrong with each container
)

// Container names begin with these, because a runtime does not know which containers are init containers.
const (
	initPrefix = "init-" // it ends at once
	sidePrefix = "side-" // it continues until it is stopped
)

const (
	completed  = 0   // exit code of a container that ends by itself
	terminated = 143 // by SIGTERM
	killed     = 137 // by SIGKILL
)

// The reasons that a runtime gives for the end of a container.
const (
	reasonCompleted = "Completed"
	reasonError     = "Error"
)

type sandbox struct {
	id      string
	config  *runtimeapi.PodSandboxConfig
	handler string
	created time.Time
	address string
	stopped bool
}

type container struct {
	id                         string
	sandbox                    *sandbox
	config                     *runtimeapi.ContainerConfig
	created, started, finished time.Time
	code                       int32
	reason                     string // for which it has ended
}

func (c *container) state() runtimeapi.ContainerState {
	switch {
	case !c.finished.IsZero():
		return runtimeapi.ContainerState_CONTAINER_EXITED
	case !c.started.IsZero():
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	default:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	}
}

func (c *container) logPath() string {
	if c.sandbox.config.GetLogDirectory() == "" || c.config.GetLogPath() == "" {
		return ""
	}
	return filepath.Join(c.sandbox.config.GetLogDirectory(), c.config.GetLogPath())
}

// runtime records what the kubelet has asked for, and runs none of it.
type runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	directory  string
	faults     faults
	lock       sync.Mutex
	number     int
	sandboxes  map[string]*sandbox
	containers map[string]*container
}

func newRuntime(directory string, faults faults) *runtime {
	return &runtime{
		directory: directory, faults: faults,
		sandboxes: map[string]*sandbox{}, containers: map[string]*container{},
	}
}

// record is a line of containers.jsonl.
type record struct {
	Time        string                           `json:"time"`
	Event       string                           `json:"event"`
	Namespace   string                           `json:"namespace"`
	Pod         string                           `json:"pod"`
	UID         string                           `json:"uid"`
	Container   string                           `json:"container,omitempty"`
	ID          string                           `json:"id"`
	ExitCode    *int32                           `json:"exitCode,omitempty"`
	Env         map[string]string                `json:"env,omitempty"`
	Annotations map[string]string                `json:"annotations,omitempty"`
	CDIDevices  []string                         `json:"cdiDevices,omitempty"`
	Devices     []*runtimeapi.Device             `json:"devices,omitempty"`
	Mounts      []*runtimeapi.Mount              `json:"mounts,omitempty"`
	Linux       *runtimeapi.LinuxContainerConfig `json:"linux,omitempty"`
}

// write adds a line to containers.jsonl. The caller holds the lock.
func (r *runtime) write(event string, box *sandbox, c *container) error {
	meta := box.config.GetMetadata()
	line := record{
		Time: time.Now().UTC().Format(time.RFC3339Nano), Event: event, ID: box.id,
		Namespace: meta.GetNamespace(), Pod: meta.GetName(), UID: meta.GetUid(),
	}
	if c != nil {
		line.ID, line.Container = c.id, c.config.GetMetadata().GetName()
		if !c.finished.IsZero() {
			line.ExitCode = &c.code
		}
	}
	if c != nil && event == "created" {
		line.Env = map[string]string{}
		for _, one := range c.config.GetEnvs() {
			line.Env[one.GetKey()] = string(one.GetValue())
		}
		for _, one := range c.config.GetCDIDevices() {
			line.CDIDevices = append(line.CDIDevices, one.GetName())
		}
		line.Annotations, line.Linux = c.config.GetAnnotations(), c.config.GetLinux()
		line.Devices, line.Mounts = c.config.GetDevices(), c.config.GetMounts()
	}
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(r.directory, "containers.jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Write(append(text, '\n'))
	return err
}

// nextID returns an id like that of a container. The caller holds the lock.
func (r *runtime) nextID() string {
	r.number++
	return fmt.Sprintf("%016x%048x", os.Getpid(), r.number)
}

// settle ends the containers whose time is over, and those that a test ends. The caller holds the lock.
func (r *runtime) settle() {
	for _, c := range r.containers {
		if c.state() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		meta, name := c.sandbox.config.GetMetadata(), c.config.GetMetadata().GetName()
		would := c.sandbox.behavior(name)
		if would.ends && time.Since(c.started) >= would.lasts {
			r.finish(c, c.started.Add(would.lasts), would.code)
			c.reason = would.reason
		} else if strings.HasPrefix(name, initPrefix) {
			r.finish(c, c.started, completed)
		} else if d, ok := c.sandbox.duration(runFor); ok && time.Since(c.started) >= d &&
			!strings.HasPrefix(name, sidePrefix) {
			r.finish(c, c.started.Add(d), completed)
		} else if code, ok := r.faults.exitCode(
			meta.GetNamespace(), meta.GetName(), name,
		); ok {
			r.finish(c, time.Now(), code)
		}
	}
}

// finish ends a container. The caller holds the lock.
func (r *runtime) finish(c *container, at time.Time, code int32) {
	c.finished, c.code, c.reason = at, code, reasonCompleted
	if code != completed {
		c.reason = reasonError
	}
	_ = r.write("exited", c.sandbox, c)
}

// duration returns the value of an annotation of the pod, and whether it has one.
func (s *sandbox) duration(annotation string) (time.Duration, bool) {
	text, ok := s.config.GetAnnotations()[annotation]
	if !ok {
		return 0, false
	}
	d, err := time.ParseDuration(text)
	return d, err == nil
}

func notFound(what, id string) error {
	return status.Errorf(codes.NotFound, "%s %q not found", what, id)
}

// --- the runtime ------------------------------------------------------------------------------------------------------

func (r *runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version: "0.1.0", RuntimeName: "nothing", RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1",
	}, nil
}

func (r *runtime) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			r.faults.condition(runtimeapi.RuntimeReady, "runtime-not-ready", "RuntimeNotReady"),
			r.faults.condition(runtimeapi.NetworkReady, "network-not-ready", "NetworkPluginNotReady"),
		}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}}},
	}, nil
}

func (r *runtime) RuntimeConfig(
	context.Context, *runtimeapi.RuntimeConfigRequest,
) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{
		Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS},
	}, nil
}

func (r *runtime) UpdateRuntimeConfig(
	context.Context, *runtimeapi.UpdateRuntimeConfigRequest,
) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// --- pods -------------------------------------------------------------------------------------------------------------

func (r *runtime) RunPodSandbox(
	_ context.Context, request *runtimeapi.RunPodSandboxRequest,
) (*runtimeapi.RunPodSandboxResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	box := &sandbox{
		id: r.nextID(), config: request.GetConfig(), handler: request.GetRuntimeHandler(), created: time.Now(),
	}
	options := box.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if options.GetNetwork() != runtimeapi.NamespaceMode_NODE {
		box.address = fmt.Sprintf("10.88.%d.%d", r.number/250%250, r.number%250+2)
	}
	r.sandboxes[box.id] = box
	if err := r.write("sandbox", box, nil); err != nil {
		return nil, err
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: box.id}, nil
}

func (r *runtime) StopPodSandbox(
	_ context.Context, request *runtimeapi.StopPodSandboxRequest,
) (*runtimeapi.StopPodSandboxResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if box, ok := r.sandboxes[request.GetPodSandboxId()]; ok && !box.stopped {
		box.stopped = true
		for _, c := range r.containers {
			if c.sandbox == box && c.state() == runtimeapi.ContainerState_CONTAINER_RUNNING {
				r.finish(c, time.Now(), killed)
			}
		}
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (r *runtime) RemovePodSandbox(
	_ context.Context, request *runtimeapi.RemovePodSandboxRequest,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	maps.DeleteFunc(r.containers, func(_ string, c *container) bool {
		return c.sandbox.id == request.GetPodSandboxId()
	})
	delete(r.sandboxes, request.GetPodSandboxId())
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func (s *sandbox) state() runtimeapi.PodSandboxState {
	if s.stopped {
		return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	return runtimeapi.PodSandboxState_SANDBOX_READY
}

func (r *runtime) PodSandboxStatus(
	_ context.Context, request *runtimeapi.PodSandboxStatusRequest,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	box, ok := r.sandboxes[request.GetPodSandboxId()]
	if !ok {
		return nil, notFound("sandbox", request.GetPodSandboxId())
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Id: box.id, Metadata: box.config.GetMetadata(), State: box.state(), CreatedAt: box.created.UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: box.address},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: box.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
		Labels: box.config.GetLabels(), Annotations: box.config.GetAnnotations(), RuntimeHandler: box.handler,
	}}, nil
}

// matches returns whether labels contain all labels of a selector.
func matches(labels, selector map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

func (r *runtime) ListPodSandbox(
	_ context.Context, request *runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	filter, found := request.GetFilter(), []*runtimeapi.PodSandbox{}
	for _, id := range slices.Sorted(maps.Keys(r.sandboxes)) {
		box := r.sandboxes[id]
		if filter.GetId() != "" && filter.GetId() != id ||
			filter.GetState() != nil && filter.GetState().GetState() != box.state() ||
			!matches(box.config.GetLabels(), filter.GetLabelSelector()) {
			continue
		}
		found = append(found, &runtimeapi.PodSandbox{
			Id: id, Metadata: box.config.GetMetadata(), State: box.state(), CreatedAt: box.created.UnixNano(),
			Labels: box.config.GetLabels(), Annotations: box.config.GetAnnotations(), RuntimeHandler: box.handler,
		})
	}
	return &runtimeapi.ListPodSandboxResponse{Items: found}, nil
}

// --- containers -------------------------------------------------------------------------------------------------------

func (r *runtime) CreateContainer(
	_ context.Context, request *runtimeapi.CreateContainerRequest,
) (*runtimeapi.CreateContainerResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	box, ok := r.sandboxes[request.GetPodSandboxId()]
	if !ok {
		return nil, notFound("sandbox", request.GetPodSandboxId())
	}
	c := &container{id: r.nextID(), sandbox: box, config: request.GetConfig(), created: time.Now()}
	if path := c.logPath(); path != "" { // otherwise the kubelet uses its working directory as the log directory
		line := fmt.Sprintf("%s stdout F no container runs\n", c.created.UTC().Format(time.RFC3339Nano))
		if err := os.WriteFile(path, []byte(line), 0o644); err != nil {
			return nil, err
		}
	}
	r.containers[c.id] = c
	if err := r.write("created", box, c); err != nil {
		return nil, err
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: c.id}, nil
}

// find returns a container. The caller holds the lock.
func (r *runtime) find(id string) (*container, error) {
	r.settle()
	c, ok := r.containers[id]
	if !ok {
		return nil, notFound("container", id)
	}
	return c, nil
}

func (r *runtime) StartContainer(
	ctx context.Context, request *runtimeapi.StartContainerRequest,
) (*runtimeapi.StartContainerResponse, error) {
	r.lock.Lock()
	c, err := r.find(request.GetContainerId())
	r.lock.Unlock()
	if err != nil {
		return nil, err
	}
	would := c.sandbox.behavior(c.config.GetMetadata().GetName())
	select {
	case <-time.After(time.Until(c.sandbox.created.Add(would.startsAfter))):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	c.started = time.Now()
	return &runtimeapi.StartContainerResponse{}, r.write("started", c.sandbox, c)
}

func (r *runtime) StopContainer(
	ctx context.Context, request *runtimeapi.StopContainerRequest,
) (*runtimeapi.StopContainerResponse, error) {
	grace := time.Duration(request.GetTimeout()) * time.Second
	r.lock.Lock()
	c, err := r.find(request.GetContainerId())
	r.lock.Unlock()
	if status.Code(err) == codes.NotFound { // it has ended already
		return &runtimeapi.StopContainerResponse{}, nil
	}
	wait, _ := c.sandbox.duration(stopAfter)
	var code int32 = terminated
	if wait > grace {
		wait, code = grace, killed
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	if c.state() == runtimeapi.ContainerState_CONTAINER_RUNNING {
		r.finish(c, time.Now(), code)
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

func (r *runtime) RemoveContainer(
	_ context.Context, request *runtimeapi.RemoveContainerRequest,
) (*runtimeapi.RemoveContainerResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	delete(r.containers, request.GetContainerId())
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (r *runtime) ListContainers(
	_ context.Context, request *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.settle()
	filter, found := request.GetFilter(), []*runtimeapi.Container{}
	for _, c := range slices.SortedFunc(maps.Values(r.containers), func(a, b *container) int {
		return cmp.Compare(a.id, b.id)
	}) {
		if filter.GetId() != "" && filter.GetId() != c.id ||
			filter.GetPodSandboxId() != "" && filter.GetPodSandboxId() != c.sandbox.id ||
			filter.GetState() != nil && filter.GetState().GetState() != c.state() ||
			!matches(c.config.GetLabels(), filter.GetLabelSelector()) {
			continue
		}
		found = append(found, &runtimeapi.Container{
			Id: c.id, PodSandboxId: c.sandbox.id, Metadata: c.config.GetMetadata(), Image: c.config.GetImage(),
			ImageRef: c.config.GetImage().GetImage(), State: c.state(), CreatedAt: c.created.UnixNano(),
			Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		})
	}
	return &runtimeapi.ListContainersResponse{Containers: found}, nil
}

// nanoseconds returns a time in the protocol's form; the time may not have come yet.
func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func (r *runtime) ContainerStatus(
	_ context.Context, request *runtimeapi.ContainerStatusRequest,
) (*runtimeapi.ContainerStatusResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	c, err := r.find(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	image := c.config.GetImage()
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
		Id: c.id, Metadata: c.config.GetMetadata(), State: c.state(), CreatedAt: c.created.UnixNano(),
		StartedAt: nanoseconds(c.started), FinishedAt: nanoseconds(c.finished), ExitCode: c.code, Reason: c.reason,
		Image:    &runtimeapi.ImageSpec{Image: cmp.Or(image.GetUserSpecifiedImage(), image.GetImage())},
		ImageRef: image.GetImage(), Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		Mounts: c.config.GetMounts(), LogPath: c.logPath(),
		Resources: &runtimeapi.ContainerResources{Linux: c.config.GetLinux().GetResources()},
	}}, nil
}

func (r *runtime) UpdateContainerResources(
	_ context.Context, request *runtimeapi.UpdateContainerResourcesRequest,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	c, err := r.find(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.config.Linux == nil {
		c.config.Linux = &runtimeapi.LinuxContainerConfig{}
	}
	c.config.Linux.Resources = request.GetLinux()
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

func (r *runtime) ReopenContainerLog(
	context.Context, *runtimeapi.ReopenContainerLogRequest,
) (*runtimeapi.ReopenContainerLogResponse, error) {
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// ExecSync is how a kubelet runs the probes of containers. A liveness probe has the command `live` and a startup probe
// the command `started`, so that they can be distinguished.
func (r *runtime) ExecSync(
	_ context.Context, request *runtimeapi.ExecSyncRequest,
) (*runtimeapi.ExecSyncResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	c, err := r.find(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	would := c.sandbox.behavior(c.config.GetMetadata().GetName())
	fails := would.isUnready
	switch command := strings.Join(request.GetCmd(), " "); {
	case command == would.failing:
		fails = command == "started" || time.Since(c.started) >= would.failsAfter
	case command == "live", command == "started":
		fails = false
	}
	if fails {
		return &runtimeapi.ExecSyncResponse{ExitCode: 1}, nil
	}
	return &runtimeapi.ExecSyncResponse{}, nil
}

func (r *runtime) ListContainerStats(
	context.Context, *runtimeapi.ListContainerStatsRequest,
) (*runtimeapi.ListContainerStatsResponse, error) {
	return &runtimeapi.ListContainerStatsResponse{}, nil
}

func (r *runtime) ListPodSandboxStats(
	context.Context, *runtimeapi.ListPodSandboxStatsRequest,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return &runtimeapi.ListPodSandboxStatsResponse{}, nil
}
