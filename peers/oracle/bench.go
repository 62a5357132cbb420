package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/checkpoint"
)

const benchResource = "example.com/dev" // as in benchmarks/workload.py

// A benchQuestion asks how long Kubernetes takes for one row of `make bench`, again and again for a few seconds.
type benchQuestion struct {
	Row           string
	Pods, Devices int
	Seconds       float64
	Checkpoint    string // with a device for each pod
}

// A sampler performs what a row measures once, and returns how long it took: processor time, or wall-clock time if
// another process does part of the work. Anything outside the timer is not counted.
type sampler func(ctx context.Context) (time.Duration, error)

// benches are the rows. Each returns its sampler, and what to do at the end.
var benches = map[string]func(ctx context.Context, asked benchQuestion) (sampler, func(), error){
	"admit":                      benchAdmit("none", false),
	"admit_after_a_pod_has_gone": benchAdmit("none", true),
	"admit_with_hints":           benchAdmit("best-effort", false),
	"hints":                      benchHints,
	"encode_from_scratch":        benchEncode,
	"decode_and_verify":          benchDecode,
	"list_over_grpc":             benchList,
	"first_list_over_grpc":       benchFirstList,
	"admit_over_grpc":            benchAdmitOverGRPC,
}

// measure returns the samples of a row in nanoseconds.
func measure(ctx context.Context, question []byte) (any, error) {
	var asked benchQuestion
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	bench, ok := benches[asked.Row]
	if !ok {
		return nil, fmt.Errorf("expected one of the rows %s, got %q", strings.Join(slices.Sorted(maps.Keys(benches)), ", "), asked.Row)
	}
	sample, end, err := bench(ctx, asked)
	if err != nil {
		return nil, err
	}
	defer end()
	taken := []int64{}
	for number, until := 0, time.Now(); number < 8 || time.Now().Before(until); number++ {
		began := time.Now()
		took, err := sample(ctx)
		if err != nil {
			return nil, err
		}
		isSlow := time.Since(began) > 10*time.Second // one sample has to be enough
		if number < 3 && !isSlow {                   // a warm-up
			until = time.Now().Add(time.Duration(asked.Seconds * float64(time.Second)))
		} else {
			taken = append(taken, took.Nanoseconds())
		}
		if isSlow {
			break
		}
	}
	return map[string]any{"ns": taken}, nil
}

// A benchNode is a kubelet with pods that have a device each.
type benchNode struct {
	deviceNode
	uids []string // of the pods, except for newcomers
	next int
}

// newBenchNode returns a kubelet that has all pods from its checkpoint, and no plugin.
func newBenchNode(ctx context.Context, asked benchQuestion, policy string) (*benchNode, func(), error) {
	directory, err := os.MkdirTemp(memoryDirectory(), "oracle-")
	if err != nil {
		return nil, nil, err
	}
	end := func() { os.RemoveAll(directory) }
	node := &benchNode{deviceNode: deviceNode{logger: klog.FromContext(ctx), active: map[string]*v1.Pod{}, directory: directory}, next: asked.Pods}
	node.deviceHistory = deviceHistory{NUMANodes: []int{0, 1}, Policy: policy, Scope: "pod"}
	for number := range asked.Pods {
		pod := benchPod(number)
		node.active[string(pod.UID)] = pod
		node.uids = append(node.uids, string(pod.UID))
	}
	if err := os.WriteFile(filepath.Join(directory, "kubelet_internal_checkpoint"), []byte(asked.Checkpoint), 0o600); err != nil {
		end()
		return nil, nil, err
	}
	if err := node.start(); err != nil {
		end()
		return nil, nil, err
	}
	return node, end, nil
}

func benchPod(number int) *v1.Pod {
	uid := fmt.Sprintf("%08x-6b1f-4a5e-9c3d-2f8e7a901b4c", number)
	return jsonPod{UID: uid, Name: uid, Namespace: "default", Containers: []jsonContainer{{Name: "c0", Limits: map[string]int64{benchResource: 1}}}}.pod()
}

func benchDevices(count int) *pluginapi.ListAndWatchResponse {
	response := &pluginapi.ListAndWatchResponse{}
	for number := range count {
		topology := &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(number % 2)}}}
		response.Devices = append(response.Devices, &pluginapi.Device{ID: fmt.Sprintf("dev-%06d", number), Health: pluginapi.Healthy, Topology: topology})
	}
	return response
}

func benchAnswer() *pluginapi.AllocateResponse {
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
		Envs:    map[string]string{"EXAMPLE_COM_DEV": "dev-000000"},
		Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/dev/device-000", HostPath: "/dev/device-000", Permissions: "rw"}},
	}}}
}

// A benchPlugin has a prepared answer.
type benchPlugin struct{ plugin }

func (p benchPlugin) API() pluginapi.DevicePluginClient { return p }

func (benchPlugin) Allocate(context.Context, *pluginapi.AllocateRequest, ...grpc.CallOption) (*pluginapi.AllocateResponse, error) {
	return benchAnswer(), nil
}

func (n *benchNode) connect(ctx context.Context, count int) error {
	if err := n.manager.PluginConnected(ctx, benchResource, benchPlugin{plugin{resource: benchResource, socket: n.directory + "/1.sock", manner: manner{Prefers: "none"}}}); err != nil {
		return err
	}
	return withoutHealth(func() error {
		n.manager.PluginListAndWatchReceiver(n.logger, benchResource, benchDevices(count))
		return nil
	})
}

// withoutHealth performs what is not measured while a kubelet does not look for the pod of each device that is new in
// a list. For each device it would look through all pods, which takes minutes with 5,000 pods and 50,000 devices.
func withoutHealth(prepare func() error) error {
	set := func(on bool) error {
		gates := utilfeature.DefaultFeatureGate.(featuregate.MutableFeatureGate)
		return gates.SetFromMap(map[string]bool{"ResourceHealthStatus": on, "ResourceHealthStatusMessage": on})
	}
	return errors.Join(set(false), prepare(), set(true))
}

// A clock returns how much time has passed since a fixed moment.
type clock func() time.Duration

// processor is the clock for work in this process: the CPU time of all its threads.
func processor() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now); err != nil {
		panic(err)
	}
	return time.Duration(now.Nano())
}

// wall is the clock for rows in which a plugin in another process does part of the work.
func wall() time.Duration { return time.Since(started) }

var started = time.Now()

// admit admits a new pod, and returns how long that took.
func (n *benchNode) admit(ctx context.Context, now clock) (*v1.Pod, time.Duration, error) {
	n.next++
	pod := benchPod(n.next)
	n.active[string(pod.UID)] = pod
	began := now()
	result := admitTo(ctx, n.scope, pod)
	took := now() - began
	if !result.Admit {
		return nil, 0, fmt.Errorf("a pod was refused: %s", result.Message)
	}
	return pod, took, nil
}

// admissions admits one pod after another; each is gone before the next one comes.
func (n *benchNode) admissions(now clock) sampler {
	return func(ctx context.Context) (time.Duration, error) {
		pod, took, err := n.admit(ctx, now)
		if err == nil {
			delete(n.active, string(pod.UID))
			sweep(n.logger, n.manager)
		}
		return took, err
	}
}

func benchAdmit(policy string, isAfterOneHasGone bool) func(context.Context, benchQuestion) (sampler, func(), error) {
	return func(ctx context.Context, asked benchQuestion) (sampler, func(), error) {
		node, end, err := newBenchNode(ctx, asked, policy)
		if err != nil {
			return nil, nil, err
		}
		random := rand.New(rand.NewSource(4))
		sample := node.admissions(processor)
		if isAfterOneHasGone {
			sample = func(ctx context.Context) (time.Duration, error) {
				place := random.Intn(len(node.uids))
				delete(node.active, node.uids[place])
				pod, took, err := node.admit(ctx, processor)
				if err == nil {
					node.uids[place] = string(pod.UID)
				}
				return took, err
			}
		}
		return sample, end, node.connect(ctx, asked.Devices)
	}
}

func benchHints(ctx context.Context, asked benchQuestion) (sampler, func(), error) {
	node, end, err := newBenchNode(ctx, asked, "best-effort")
	if err != nil {
		return nil, nil, err
	}
	pod := benchPod(asked.Pods + 1)
	node.active[string(pod.UID)] = pod
	return func(context.Context) (time.Duration, error) {
		began := processor()
		containerHints(node.logger, node.manager, pod, &pod.Spec.Containers[0])
		return processor() - began, nil
	}, end, node.connect(ctx, asked.Devices)
}

func benchEncode(_ context.Context, asked benchQuestion) (sampler, func(), error) {
	read := checkpoint.New(nil, nil)
	if err := read.UnmarshalCheckpoint([]byte(asked.Checkpoint)); err != nil {
		return nil, nil, err
	}
	entries, registered := read.GetData()
	return func(context.Context) (time.Duration, error) {
		began := processor()
		_, err := checkpoint.New(entries, registered).MarshalCheckpoint()
		return processor() - began, err
	}, func() {}, nil
}

func benchDecode(_ context.Context, asked benchQuestion) (sampler, func(), error) {
	text := []byte(asked.Checkpoint)
	return func(context.Context) (time.Duration, error) {
		began := processor()
		read := checkpoint.New(nil, nil)
		if err := read.UnmarshalCheckpoint(text); err != nil {
			return 0, err
		}
		err := read.VerifyChecksum()
		return processor() - began, err
	}, func() {}, nil
}

// --- over gRPC -------------------------------------------------------------------------------------------------------

// serve makes the kubelet listen for plugins, as it does when it starts.
func (n *benchNode) serve() error {
	active := func() []*v1.Pod { return slices.Collect(maps.Values(n.active)) }
	return n.manager.Start(n.logger, active, ready{}, containermap.NewContainerMap(), sets.New[string]())
}

// waitFor waits until the kubelet has this many devices.
func (n *benchNode) waitFor(count int) error {
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(10 * time.Microsecond) {
		capacity, _, _ := capacityOf(n.logger, n.manager)
		if quantity := capacity[benchResource]; quantity.Value() == int64(count) {
			return nil
		}
	}
	return fmt.Errorf("the kubelet has not had %d devices of the plugin after a minute", count)
}

// A pluginProcess is a plugin in another process: `oracle plugin`.
type pluginProcess struct {
	command *exec.Cmd
	orders  io.WriteCloser
}

func startPlugin() (*pluginProcess, error) {
	command := exec.Command(os.Args[0], "plugin")
	command.Stderr = os.Stderr
	orders, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &pluginProcess{command, orders}, command.Start()
}

func (p *pluginProcess) tell(order string, words ...any) error {
	_, err := fmt.Fprintf(p.orders, order+"\n", words...)
	return err
}

func (p *pluginProcess) end() {
	p.orders.Close()
	_ = p.command.Wait()
}

// newServedNode returns a kubelet that listens, with a plugin in another process that has registered.
func newServedNode(ctx context.Context, asked benchQuestion) (*benchNode, *pluginProcess, func(), error) {
	node, remove, err := newBenchNode(ctx, asked, "none")
	if err != nil {
		return nil, nil, nil, err
	}
	process, err := startPlugin()
	if err != nil {
		remove()
		return nil, nil, nil, err
	}
	end := func() {
		_ = node.manager.Stop(node.logger)
		process.end()
		remove()
	}
	if err := node.serve(); err != nil {
		end()
		return nil, nil, nil, err
	}
	register := func() error {
		return errors.Join(process.tell("register %s %d", node.directory, asked.Devices), node.waitFor(asked.Devices))
	}
	if err := withoutHealth(register); err != nil {
		end()
		return nil, nil, nil, err
	}
	return node, process, end, nil
}

func benchAdmitOverGRPC(ctx context.Context, asked benchQuestion) (sampler, func(), error) {
	node, _, end, err := newServedNode(ctx, asked)
	if err != nil {
		return nil, nil, err
	}
	return node.admissions(wall), end, nil
}

// benchList measures the time from the command to a plugin until the kubelet has one device fewer, or one more, than
// before.
func benchList(ctx context.Context, asked benchQuestion) (sampler, func(), error) {
	node, process, end, err := newServedNode(ctx, asked)
	if err != nil {
		return nil, nil, err
	}
	less := 0
	return func(context.Context) (time.Duration, error) {
		less = 1 - less
		began := time.Now()
		err := errors.Join(process.tell("list %d", asked.Devices-less), node.waitFor(asked.Devices-less))
		return time.Since(began), err
	}, end, nil
}

// benchFirstList measures the time from the command to register until a newly started kubelet has the plugin's
// devices.
func benchFirstList(ctx context.Context, asked benchQuestion) (sampler, func(), error) {
	process, err := startPlugin()
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) (time.Duration, error) {
		node, remove, err := newBenchNode(ctx, asked, "none")
		if err != nil {
			return 0, err
		}
		defer remove()
		if err := node.serve(); err != nil {
			return 0, err
		}
		began := time.Now()
		err = errors.Join(process.tell("register %s %d", node.directory, asked.Devices), node.waitFor(asked.Devices))
		took := time.Since(began)
		return took, errors.Join(err, node.manager.Stop(node.logger))
	}, process.end, nil
}

// --- the plugin in another process -------------------------------------------------------------------------------------

// A servedPlugin answers every call at once, and sends lists when told to.
type servedPlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	lists chan *pluginapi.ListAndWatchResponse
}

func (servedPlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p servedPlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case list := <-p.lists:
			if err := stream.Send(list); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (servedPlugin) Allocate(context.Context, *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	return benchAnswer(), nil
}

// runPlugin reads commands, one per line: `register DIRECTORY COUNT` registers with the kubelet there, and lists this
// many devices; `list COUNT` sends another list. An instance ends when the next one registers.
func runPlugin(orders io.Reader) error {
	lists := map[int]*pluginapi.ListAndWatchResponse{}
	list := func(count int) *pluginapi.ListAndWatchResponse {
		if lists[count] == nil {
			lists[count] = benchDevices(count)
		}
		return lists[count]
	}
	var server *grpc.Server
	var current servedPlugin
	lines := bufio.NewScanner(orders)
	for lines.Scan() {
		var directory string
		var count int
		if _, err := fmt.Sscanf(lines.Text(), "list %d", &count); err == nil {
			current.lists <- list(count)
			continue
		}
		if _, err := fmt.Sscanf(lines.Text(), "register %s %d", &directory, &count); err != nil {
			return fmt.Errorf("expected `register DIRECTORY COUNT` or `list COUNT`, got %q", lines.Text())
		}
		if server != nil {
			server.Stop()
		}
		current = servedPlugin{lists: make(chan *pluginapi.ListAndWatchResponse, 1)}
		current.lists <- list(count)
		server = grpc.NewServer()
		pluginapi.RegisterDevicePluginServer(server, current)
		listener, err := net.Listen("unix", filepath.Join(directory, "bench.sock"))
		if err != nil {
			return err
		}
		go func() { _ = server.Serve(listener) }()
		_ = register(directory) // a kubelet may end as soon as it has the list, before it answers
	}
	return lines.Err()
}

func register(directory string) error {
	connection, err := grpc.NewClient("unix:"+filepath.Join(directory, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	request := &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: "bench.sock", ResourceName: benchResource}
	_, err = pluginapi.NewRegistrationClient(connection).Register(context.Background(), request)
	return err
}
