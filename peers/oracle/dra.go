package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	drapbv1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra/state"
)

type scriptedDevice struct {
	Requests     []string
	Pool, Device string
	CDI          []string
	ShareID      *string `json:"share_id"`
}

type scriptRule struct {
	Error   string
	Missing bool
	Devices *[]scriptedDevice
}

type script struct {
	DelayMS int `json:"delay_ms"`
	Claims  map[string]scriptRule
	Extra   map[string]scriptRule
	Error   *struct {
		Code    codes.Code
		Message string
	}
}

type draStep struct {
	Op                                 string
	Name, Instance, Version, Namespace string
	Mode, Pod, UID                     string
	Script                             struct{ Prepare, Unprepare script }
	Object                             json.RawMessage
	Active                             []string
	Ready, End, Health                 bool
	Container                          string
	MS                                 int
	TimeoutMS                          int `json:"timeout_ms"`
	Devices                            []reportedHealth
	Reregister                         any
}

type reportedHealth struct {
	Pool, Device, Health, Message string
	Timeout, LastUpdated          int64
}

type jsonAnswer struct {
	Error   string           `json:"error,omitempty"`
	Devices []map[string]any `json:"devices,omitempty"`
}

type call struct {
	Driver   string                 `json:"driver"`
	Instance string                 `json:"instance"`
	Version  string                 `json:"version"`
	Method   string                 `json:"method"`
	Claims   []map[string]string    `json:"claims"`
	Answer   map[string]*jsonAnswer `json:"answer,omitempty"`
	RPCError string                 `json:"rpc_error,omitempty"`
}

// A driver answers with the allocation of a claim unless its script says otherwise. It serves one version of the API.
type driver struct {
	drapbv1.UnimplementedDRAPluginServer
	node                              *claimNode
	name, instance, version, endpoint string
	offer                             string // the version that it names when it registers
	timeout                           *time.Duration
	server                            *grpc.Server
	hasHealth                         bool
	health                            *healthReports // to the manager that runs now
	script                            struct{ Prepare, Unprepare script }
}

// answer returns the rule of each claim that the script answers, and records the call.
func (d *driver) answer(ctx context.Context, method string, claims []*drapbv1.Claim, says script, devices func(*drapbv1.Claim, scriptRule) []*drapbv1.Device) (map[string]*drapbv1.NodePrepareResourceResponse, error) {
	made := call{Driver: d.name, Instance: d.instance, Version: d.version, Method: method, Claims: []map[string]string{}}
	defer func() {
		d.node.mutex.Lock()
		defer d.node.mutex.Unlock()
		d.node.calls = append(d.node.calls, made)
	}()
	for _, claim := range claims {
		made.Claims = append(made.Claims, map[string]string{"name": claim.Name, "namespace": claim.Namespace, "uid": claim.Uid})
	}
	if says.DelayMS > 0 {
		select {
		case <-time.After(time.Duration(says.DelayMS) * time.Millisecond):
		case <-ctx.Done():
		}
	}
	if says.Error != nil {
		made.RPCError = says.Error.Message
		return nil, status.Error(says.Error.Code, says.Error.Message)
	}
	answers := map[string]*drapbv1.NodePrepareResourceResponse{}
	made.Answer = map[string]*jsonAnswer{}
	add := func(uid string, answer *drapbv1.NodePrepareResourceResponse) {
		answers[uid] = answer
		shown := &jsonAnswer{Error: answer.Error}
		for _, one := range answer.Devices {
			device := map[string]any{"requests": one.RequestNames, "pool": one.PoolName, "device": one.DeviceName, "cdi": one.CdiDeviceIds}
			if one.ShareId != nil {
				device["share_id"] = *one.ShareId
			}
			shown.Devices = append(shown.Devices, device)
		}
		made.Answer[uid] = shown
	}
	for _, claim := range claims {
		rule, ok := says.Claims[claim.Uid]
		if !ok {
			rule, ok = says.Claims[claim.Name]
		}
		if !ok {
			rule = says.Claims["*"]
		}
		if rule.Missing {
			continue
		}
		answer := &drapbv1.NodePrepareResourceResponse{Error: rule.Error}
		if rule.Error == "" && devices != nil {
			answer.Devices = devices(claim, rule)
		}
		add(claim.Uid, answer)
	}
	for uid, rule := range says.Extra {
		add(uid, &drapbv1.NodePrepareResourceResponse{Error: rule.Error})
	}
	return answers, nil
}

func (d *driver) devices(claim *drapbv1.Claim, rule scriptRule) (all []*drapbv1.Device) {
	if rule.Devices != nil {
		for _, one := range *rule.Devices {
			all = append(all, &drapbv1.Device{RequestNames: one.Requests, PoolName: one.Pool, DeviceName: one.Device, CdiDeviceIds: one.CDI, ShareId: one.ShareID})
		}
		return all
	}
	for _, result := range d.node.allocations[claim.Uid] {
		if result.Driver != d.name {
			continue
		}
		device := &drapbv1.Device{
			RequestNames: []string{strings.SplitN(result.Request, "/", 2)[0]},
			PoolName:     result.Pool,
			DeviceName:   result.Device,
			CdiDeviceIds: []string{fmt.Sprintf("%s/dev=%s-%s", d.name, claim.Uid, result.Device)},
		}
		if result.ShareID != nil {
			id := string(*result.ShareID)
			device.ShareId = &id
		}
		all = append(all, device)
	}
	return all
}

func (d *driver) NodePrepareResources(ctx context.Context, in *drapbv1.NodePrepareResourcesRequest) (*drapbv1.NodePrepareResourcesResponse, error) {
	answers, err := d.answer(ctx, "NodePrepareResources", in.Claims, d.script.Prepare, d.devices)
	return &drapbv1.NodePrepareResourcesResponse{Claims: answers}, err
}

func (d *driver) NodeUnprepareResources(ctx context.Context, in *drapbv1.NodeUnprepareResourcesRequest) (*drapbv1.NodeUnprepareResourcesResponse, error) {
	answers, err := d.answer(ctx, "NodeUnprepareResources", in.Claims, d.script.Unprepare, nil)
	response := &drapbv1.NodeUnprepareResourcesResponse{Claims: map[string]*drapbv1.NodeUnprepareResourceResponse{}}
	for uid, answer := range answers {
		response.Claims[uid] = &drapbv1.NodeUnprepareResourceResponse{Error: answer.Error}
	}
	return response, err
}

func (d *driver) serve() error {
	if err := os.MkdirAll(filepath.Dir(d.endpoint), 0o700); err != nil {
		return err
	}
	os.Remove(d.endpoint)
	listener, err := net.Listen("unix", d.endpoint)
	if err != nil {
		return err
	}
	d.server = grpc.NewServer()
	if d.version == "v1beta1" {
		drapbv1beta1.RegisterDRAPluginServer(d.server, drapbv1beta1.V1ServerWrapper{DRAPluginServer: d})
	} else {
		drapbv1.RegisterDRAPluginServer(d.server, d)
	}
	go d.server.Serve(listener)
	return nil
}

// A claimNode is a kubelet's DRA manager and its surroundings.
type claimNode struct {
	directory   string
	client      *fake.Clientset
	manager     *dra.Manager
	cancel      context.CancelFunc
	pods        map[string]*v1.Pod
	active      []string
	ready       bool
	allocations map[string][]resourceapi.DeviceRequestAllocationResult
	drivers     map[string]*driver
	order       []string
	streams     []*healthReports
	mutex       sync.Mutex
	calls       []call
}

// healthReports is the stream in which a driver reports health. A manager asks for the next report once it has handled
// the last one.
type healthReports struct {
	reports chan []reportedHealth
	asked   chan struct{}
}

// next waits for a report, which is nil if the stream has ended.
func (h *healthReports) next() []reportedHealth {
	h.asked <- struct{}{}
	return <-h.reports
}

// watchHealth makes the running manager watch the health of a driver.
func (n *claimNode) watchHealth(ctx context.Context, d *driver) {
	watched := &healthReports{reports: make(chan []reportedHealth), asked: make(chan struct{})}
	n.streams = append(n.streams, watched)
	d.health = watched
	manager := n.manager
	go func() {
		defer close(watched.asked)
		watchHealth(ctx, manager, d.name, watched)
	}()
	<-watched.asked
}

func (n *claimNode) AllReady() bool   { return n.ready }
func (n *claimNode) AddSource(string) {}

// playClaims plays a history of a DRA manager, and answers each step.
func playClaims(ctx context.Context, question []byte) (any, error) {
	var asked struct {
		Steps []json.RawMessage
		Gates []string // feature gates that are on
	}
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	if err := turnOn(asked.Gates); err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp(memoryDirectory(), "oracle-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	node := &claimNode{
		directory:   directory,
		client:      fake.NewSimpleClientset(), // NewClientset creates all API mappings again for each write
		pods:        map[string]*v1.Pod{},
		allocations: map[string][]resourceapi.DeviceRequestAllocationResult{},
		drivers:     map[string]*driver{},
	}
	defer func() {
		for _, one := range node.drivers {
			one.server.Stop()
		}
		for _, one := range node.streams {
			close(one.reports)
		}
		node.stop()
	}()
	if err := node.start(ctx); err != nil {
		return nil, err
	}
	answers := []any{}
	for number, text := range asked.Steps {
		var one draStep
		if err := json.Unmarshal(text, &one); err != nil {
			return nil, fmt.Errorf("step %d: %w", number, err)
		}
		node.calls = []call{}
		answer, failed, err := node.play(ctx, one)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", number, err)
		}
		answer["ok"] = failed == nil
		if failed != nil {
			answer["error"] = strings.ReplaceAll(failed.Error(), node.directory, "{DIR}")
		}
		answer["calls"] = node.calls
		answers = append(answers, answer)
	}
	return answers, nil
}

// turnOn turns on these gates, and turns off those from other questions.
func turnOn(wanted []string) error {
	gates := utilfeature.DefaultFeatureGate.(featuregate.MutableFeatureGate)
	all := map[string]bool{}
	for _, name := range []string{"DRAOptionalNodeOperations"} {
		if _, ok := gates.GetAll()[featuregate.Feature(name)]; ok {
			all[name] = slices.Contains(wanted, name)
		}
	}
	return gates.SetFromMap(all)
}

func (n *claimNode) start(ctx context.Context) (err error) {
	n.stop()
	ctx, n.cancel = context.WithCancel(ctx)
	if n.manager, err = dra.NewManager(klog.FromContext(ctx), n.client, n.directory); err != nil {
		return err
	}
	active := func() (all []*v1.Pod) {
		for _, uid := range n.active {
			all = append(all, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}})
		}
		return all
	}
	n.manager.StartWithoutLoop(ctx, active, n)
	return nil
}

// stop ends a manager without a chance to save anything.
func (n *claimNode) stop() {
	if n.manager != nil {
		n.cancel()
		n.manager.Plugins().Stop()
	}
}

const patience = 10 * time.Second // for anything that happens at once unless something is wrong

// register returns the kubelet's error, and an error in the history.
func (n *claimNode) register(ctx context.Context, d *driver) (error, error) {
	if err := registerDriver(ctx, n.manager, d.name, d.endpoint, d.offer+".DRAPlugin", d.timeout); err != nil {
		return err, nil
	}
	if d.hasHealth {
		n.watchHealth(ctx, d)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return nil, n.manager.Plugins().WaitUntilConnected(ctx, d.name, d.endpoint)
}

// end ends a driver as the history says.
func (n *claimNode) end(ctx context.Context, d *driver, mode string) error {
	if mode != "kill" {
		deregisterDriver(ctx, n.manager, d.name, d.endpoint)
	}
	if mode == "deregister_only" {
		return nil
	}
	d.server.Stop()
	key := d.name + " " + d.instance
	delete(n.drivers, key)
	n.order = slices.DeleteFunc(n.order, func(other string) bool { return other == key })
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return n.manager.Plugins().WaitUntilDisconnected(ctx, d.name, d.endpoint)
}

// updates returns the pods for which the manager has reported a change of health, one list per report.
func (n *claimNode) updates() [][]string {
	all := [][]string{}
	for {
		select {
		case update := <-n.manager.Updates():
			slices.Sort(update.PodUIDs)
			all = append(all, update.PodUIDs)
		default:
			return all
		}
	}
}

// play returns the answer to a step, the kubelet's error, and an error in the history.
func (n *claimNode) play(ctx context.Context, one draStep) (map[string]any, error, error) {
	if one.Instance == "" {
		one.Instance = "a"
	}
	if one.Version == "" {
		one.Version = "v1"
	}
	key := one.Name + " " + one.Instance
	answer := map[string]any{}
	switch one.Op {
	case "driver_up":
		d := n.drivers[key]
		if d == nil {
			endpoint := filepath.Join(n.directory, "plugins", one.Name, one.Instance+".sock")
			d = &driver{node: n, name: one.Name, instance: one.Instance, version: one.Version, endpoint: endpoint, hasHealth: one.Health}
			if one.TimeoutMS > 0 {
				timeout := time.Duration(one.TimeoutMS) * time.Millisecond
				d.timeout = &timeout
			}
			if err := d.serve(); err != nil {
				return nil, nil, err
			}
			n.drivers[key] = d
			n.order = append(n.order, key)
		}
		d.offer = one.Version
		failed, err := n.register(ctx, d)
		return answer, failed, err
	case "driver_script":
		if d := n.drivers[key]; d != nil {
			d.script = one.Script
		}
		return answer, nil, nil
	case "driver_down":
		d := n.drivers[key]
		if d == nil {
			return nil, nil, fmt.Errorf("there is no driver %s", key)
		}
		return answer, nil, n.end(ctx, d, one.Mode)
	case "health":
		d := n.drivers[key]
		if d == nil || d.health == nil {
			return nil, nil, fmt.Errorf("there is no driver %s that reports health", key)
		}
		if one.End {
			d.health.reports <- nil
			<-d.health.asked // closed
			answer["updates"] = n.updates()
			n.watchHealth(ctx, d)
			return answer, nil, nil
		}
		d.health.reports <- one.Devices
		<-d.health.asked
		answer["applied"], answer["updates"] = true, n.updates()
		return answer, nil, nil
	case "update_status":
		pod := n.pods[one.Pod].DeepCopy()
		for _, container := range pod.Spec.Containers {
			if !slices.ContainsFunc(pod.Status.ContainerStatuses, func(one v1.ContainerStatus) bool { return one.Name == container.Name }) {
				pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, v1.ContainerStatus{Name: container.Name})
			}
		}
		updateStatus(ctx, n.manager, pod, &pod.Status)
		statuses := map[string]any{}
		for _, container := range pod.Status.ContainerStatuses {
			rows := container.AllocatedResourcesStatus
			slices.SortFunc(rows, func(a, b v1.ResourceStatus) int { return strings.Compare(string(a.Name), string(b.Name)) })
			statuses[container.Name] = rows
		}
		answer["allocatedResourcesStatus"] = statuses
		return answer, nil, nil
	case "sleep":
		time.Sleep(time.Duration(one.MS) * time.Millisecond) // the manager reads the clock
		return answer, nil, nil
	case "pod_resources":
		pod := n.pods[one.Pod]
		for _, container := range append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...) {
			if container.Name == one.Container {
				n.addResources(ctx, answer, pod, &container)
			}
		}
		return answer, nil, nil
	case "put_claim":
		claim := &resourceapi.ResourceClaim{}
		if err := json.Unmarshal(one.Object, claim); err != nil {
			return nil, nil, err
		}
		n.allocations[string(claim.UID)] = nil
		if claim.Status.Allocation != nil {
			n.allocations[string(claim.UID)] = claim.Status.Allocation.Devices.Results
		}
		claims := n.client.ResourceV1().ResourceClaims(claim.Namespace)
		_, err := claims.Update(ctx, claim, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			_, err = claims.Create(ctx, claim, metav1.CreateOptions{})
		}
		return answer, nil, err
	case "delete_claim":
		err := n.client.ResourceV1().ResourceClaims(one.Namespace).Delete(ctx, one.Name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return answer, nil, err
	case "put_pod":
		pod := &v1.Pod{}
		if err := json.Unmarshal(one.Object, pod); err != nil {
			return nil, nil, err
		}
		n.pods[string(pod.UID)] = pod
		return answer, nil, nil
	case "prepare":
		failed := n.manager.PrepareResources(ctx, n.pods[one.Pod])
		return answer, failed, n.addState(answer)
	case "unprepare":
		failed := n.manager.UnprepareResources(ctx, n.pods[one.Pod])
		return answer, failed, n.addState(answer)
	case "reconcile":
		n.active, n.ready = one.Active, one.Ready
		n.manager.Reconcile(ctx)
		return answer, nil, n.addState(answer)
	case "restart":
		if err := n.start(ctx); err != nil {
			return nil, nil, err
		}
		again, _ := one.Reregister.([]any)
		for _, name := range n.order {
			d := n.drivers[name]
			if one.Reregister == true || slices.Contains(again, any(d.name)) {
				if failed, err := n.register(ctx, d); err != nil || failed != nil {
					return nil, nil, errors.Join(err, failed)
				}
			}
		}
		return answer, nil, n.addState(answer)
	case "pod_might_need":
		answer["value"] = n.manager.PodMightNeedToUnprepareResources(types.UID(one.UID))
		return answer, nil, nil
	case "all_resources":
		pod := n.pods[one.Pod]
		containers := map[string]any{}
		for _, container := range append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...) {
			info, err := n.manager.GetResources(pod, &container)
			if err != nil {
				containers[container.Name] = map[string]any{"ok": false, "error": err.Error()}
				continue
			}
			names := []string{}
			for _, device := range info.CDIDevices {
				names = append(names, device.Name)
			}
			containers[container.Name] = map[string]any{"ok": true, "cdi": names}
		}
		answer["containers"] = containers
		return answer, nil, nil
	}
	return nil, nil, fmt.Errorf("unknown op %q", one.Op)
}

// addResources adds what the kubelet lists for a container's claims, and what it logs if it lists nothing.
func (n *claimNode) addResources(ctx context.Context, answer map[string]any, pod *v1.Pod, container *v1.Container) {
	all := []map[string]any{}
	for _, resource := range dynamicResources(ctx, n.manager, pod, container) {
		rows := []map[string]any{}
		for _, one := range resource.ClaimResources {
			names := []string{}
			for _, device := range one.CdiDevices {
				names = append(names, device.Name)
			}
			row := map[string]any{"driver": one.DriverName, "pool": one.PoolName, "device": one.DeviceName, "cdi": names}
			if one.ShareId != nil {
				row["share_id"] = *one.ShareId
			}
			rows = append(rows, row)
		}
		all = append(all, map[string]any{"claim": resource.ClaimName, "namespace": resource.ClaimNamespace, "resources": rows})
	}
	answer["dynamic_resources"] = all
	if _, err := n.manager.GetContainerClaimInfos(pod, container); err != nil {
		answer["logged_error"] = err.Error()
	}
}

// addState adds the content of the file, and the state that is only in memory.
func (n *claimNode) addState(answer map[string]any) error {
	file, err := state.NewCheckpointer(n.directory, "dra_manager_state")
	if err != nil {
		return err
	}
	saved, err := file.GetOrCreate()
	if err != nil {
		return err
	}
	claims, err := saved.GetClaimInfoStateList()
	if err != nil {
		return err
	}
	slices.SortFunc(claims, func(a, b state.ClaimInfoState) int {
		return slices.Compare([]string{a.Namespace, a.ClaimName}, []string{b.Namespace, b.ClaimName})
	})
	memory, prepared := n.manager.Claims()
	answer["state"] = map[string]any{"claims": jsonClaims(claims)}
	answer["prepared"] = prepared
	answer["memory_is_state"] = reflect.DeepEqual(jsonClaims(memory), jsonClaims(claims))
	return nil
}
