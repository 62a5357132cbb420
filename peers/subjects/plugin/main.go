// Plugin is a device plugin for the resource subject.example/chip, for the conformance suite to judge.
//
// Without FAULT and VARIANT, it is meant to be correct. FAULT injects one fault (../planted.json says what it does),
// and VARIANT selects an unusual but correct behavior.
//
// Law: a fault changes one thing, and everything else stays as it is without the fault.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const resource = "subject.example/chip"
const socketName = "subject-chip.sock"
const chips = 12

var (
	fault   = os.Getenv("FAULT")
	variant = os.Getenv("VARIANT")
)

var knownFaults = map[string]bool{}

func faulty(name string) bool { return fault == name }

// chip is a device of the machine.
type chip struct {
	index int
	numa  int64
	sick  bool
	// recovered: it has been unhealthy (recovers-in-lower-case)
	recovered bool
}

// server is the plugin: one inventory, and one gRPC server at a time.
type server struct {
	dir, ctl, state string

	mu      sync.Mutex
	chips   []chip
	version int           // of the inventory
	changed chan struct{} // closed at a change
	ids     []string      // one per chip
	ready   bool          // false: the list is still empty (VARIANT=zero-first)

	grpc *grpc.Server
	stop chan struct{} // closed when the current gRPC server goes
	// for faults
	blockingStop chan bool         // restart-blocks-on-stop-channel
	updates      chan struct{}     // update-goes-to-dead-stream
	firstList    []*api.Device     // stale-list-after-restart
	given        []*api.DeviceSpec // answers-accumulate
	inUse        map[string]bool   // refuses-second-allocation
	allocated    map[string]bool   // prestart-needs-own-allocation
	current      []string          // concurrent-answers-mixed
	leaked       []*os.File
	apiVersion   string
	kubelet      string // the identity of the kubelet.sock that was registered with
}

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	s := &server{changed: make(chan struct{}), blockingStop: make(chan bool), updates: make(chan struct{}),
		inUse: map[string]bool{}, allocated: map[string]bool{}, apiVersion: api.Version}
	dir := os.Getenv("DEVICE_PLUGIN_PATH")
	if dir == "" {
		dir = api.DevicePluginPath
	}
	flag.StringVar(&s.dir, "device-plugin-path", dir, "the kubelet's directory for device plugins")
	flag.StringVar(&s.ctl, "ctl", os.Getenv("CTL"), "a directory: a file sick-N in it makes chip N unhealthy")
	flag.StringVar(&s.state, "state", os.Getenv("STATE"), "a directory for what containers mount (a new one by default)")
	flag.Parse()
	if s.state == "" {
		s.state = filepath.Join(os.TempDir(), fmt.Sprintf("subject-plugin-%d", os.Getuid()))
	}
	if fault != "" && !knownFaults[fault] {
		log.Fatalf("unknown fault %q", fault)
	}
	switch variant {
	case "", "slow", "shares", "zero-first", "cdi-only", "batching":
	default:
		log.Fatalf("unknown variant %q", variant)
	}
	if err := s.run(); err != nil {
		log.Fatal(err)
	}
}

func init() {
	for _, name := range strings.Fields(`
		register-before-serving options-disagree downgrades-version reregisters-only-once reregisters-without-socket
		stale-list-after-restart update-goes-to-dead-stream stream-times-out recovers-in-lower-case partial-updates
		topology-lost-on-update numa-minus-one one-answer-for-two-containers node-by-last-digit answers-accumulate
		refuses-second-allocation duplicate-mount cdi-names-joined preferred-ignores-must-include preferred-too-small
		prestart-slow prestart-needs-own-allocation concurrent-answers-mixed restart-blocks-on-stop-channel
		spins-after-disconnect graceful-stop-hangs stale-socket-blocks-start ids-change-on-restart id-too-long
		removes-other-sockets`) {
		knownFaults[name] = true
	}
}

func (s *server) run() error {
	s.discover()
	if err := s.prepareFiles(); err != nil {
		return err
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT)

	if faulty("removes-other-sockets") { // "clean up what a crash left"
		stale, _ := filepath.Glob(filepath.Join(s.dir, "*.sock"))
		for _, path := range stale {
			if filepath.Base(path) != "kubelet.sock" {
				_ = os.Remove(path)
			}
		}
	}
	if variant == "slow" {
		select {
		case <-time.After(5 * time.Second):
		case <-signals:
			return nil
		}
	}
	go s.watchHealth()
	if variant == "zero-first" {
		time.AfterFunc(8*time.Second, func() {
			s.mu.Lock()
			s.ready = true
			s.notify()
			s.mu.Unlock()
		})
	} else {
		s.ready = true
	}

	restarts := 0
	for {
		if err := s.start(); err != nil {
			return err
		}
		if faulty("register-before-serving") {
			// start() has not listened yet.
			if !s.registerUntil(signals) {
				s.shutdown()
				return nil
			}
			time.Sleep(1500 * time.Millisecond)
			if err := s.listen(); err != nil {
				return err
			}
		} else if !s.registerUntil(signals) {
			s.shutdown()
			return nil
		}
		why := s.waitForRestart(signals, restarts)
		if why == "signal" {
			s.shutdown()
			return nil
		}
		restarts++
		log.Printf("the kubelet has restarted: %s", why)
		if faulty("reregisters-without-socket") {
			// The process still listens on the deleted socket and registers it again.
			for {
				if !s.registerUntil(signals) || s.waitForRestart(signals, restarts) == "signal" {
					s.shutdown()
					return nil
				}
			}
		}
		if faulty("restart-blocks-on-stop-channel") {
			s.blockingStop <- true // only a stream that is still open reads this
		}
		s.close()
	}
}

func (s *server) kubeletSocket() string { return filepath.Join(s.dir, "kubelet.sock") }
func (s *server) socket() string        { return filepath.Join(s.dir, socketName) }

func (s *server) discover() {
	s.chips = nil
	for i := range chips {
		s.chips = append(s.chips, chip{index: i, numa: int64(i / (chips / 2))})
		id := fmt.Sprintf("chip-%d", i)
		if faulty("id-too-long") {
			id = fmt.Sprintf("subject-example-accelerator-with-serial-number-0000-0000-0000-%04d-chip-%d", i, i)
		}
		if faulty("ids-change-on-restart") {
			b := make([]byte, 8)
			_, _ = rand.Read(b)
			id = "chip-" + hex.EncodeToString(b)
		}
		s.ids = append(s.ids, id)
	}
}

// prepareFiles creates the files that containers mount, and the CDI file.
func (s *server) prepareFiles() error {
	if err := os.MkdirAll(filepath.Join(s.state, "lib"), 0o755); err != nil {
		return err
	}
	type node struct {
		Path     string `json:"path"`
		HostPath string `json:"hostPath"`
	}
	type edits struct {
		Env   []string `json:"env,omitempty"`
		Nodes []node   `json:"deviceNodes,omitempty"`
	}
	type device struct {
		Name  string `json:"name"`
		Edits edits  `json:"containerEdits"`
	}
	var devices []device
	for i, id := range s.ids {
		if err := os.MkdirAll(filepath.Join(s.state, "scratch", id), 0o755); err != nil {
			return err
		}
		e := edits{Env: []string{fmt.Sprintf("CHIP_%d=%s", i, id)}}
		if variant == "cdi-only" {
			e.Nodes = []node{{fmt.Sprintf("/dev/chip%d", i), fmt.Sprintf("/dev/chip%d", i)}}
		}
		devices = append(devices, device{id, e})
	}
	data, err := json.MarshalIndent(map[string]any{"cdiVersion": "0.6.0", "kind": resource, "devices": devices}, "", " ")
	if err != nil {
		return err
	}
	path := filepath.Join(s.state, "subject-example-chip.json")
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// start creates the gRPC server and listens.
func (s *server) start() error {
	s.stop = make(chan struct{})
	s.grpc = grpc.NewServer()
	api.RegisterDevicePluginServer(s.grpc, &service{server: s, stop: s.stop})
	if faulty("register-before-serving") {
		return nil
	}
	return s.listen()
}

func (s *server) listen() error {
	if !faulty("stale-socket-blocks-start") {
		if err := os.Remove(s.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	listener, err := net.Listen("unix", s.socket())
	if err != nil {
		return err
	}
	// A kubelet deletes sockets itself; closing an old listener must not delete the file of a newer one.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	g := s.grpc
	go func() {
		if err := g.Serve(listener); err != nil {
			log.Printf("serving: %v", err)
		}
	}()
	return nil
}

// registerUntil tries to register until it succeeds; it returns false if a signal came first.
func (s *server) registerUntil(signals <-chan os.Signal) bool {
	for {
		if _, err := os.Stat(s.socket()); errors.Is(err, os.ErrNotExist) && !faulty("register-before-serving") && !faulty("reregisters-without-socket") {
			s.close() // a kubelet that starts deletes all sockets
			if err := s.start(); err != nil {
				log.Printf("serving again: %v", err)
			}
		}
		s.kubelet = identity(s.kubeletSocket())
		err := s.register()
		if err == nil {
			log.Printf("registered %s", resource)
			return true
		}
		log.Printf("registering: %v", err)
		if faulty("downgrades-version") {
			s.apiVersion = "v1alpha" // "an old kubelet"
		}
		select {
		case <-signals:
			return false
		case <-time.After(time.Second):
		}
	}
}

func (s *server) register() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := os.Stat(s.kubeletSocket()); err != nil {
		return err
	}
	connection, err := grpc.NewClient("unix:"+s.kubeletSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	request := &api.RegisterRequest{Version: s.apiVersion, Endpoint: socketName, ResourceName: resource, Options: options()}
	_, err = api.NewRegistrationClient(connection).Register(ctx, request)
	return err
}

func options() *api.DevicePluginOptions {
	if variant == "cdi-only" {
		return &api.DevicePluginOptions{}
	}
	return &api.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}
}

// identity distinguishes one kubelet.sock from the next.
func identity(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	stat := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d/%d.%d", stat.Ino, stat.Ctim.Sec, stat.Ctim.Nsec)
}

// waitForRestart waits until the plugin has to register again, or until a signal arrives.
func (s *server) waitForRestart(signals <-chan os.Signal, restarts int) string {
	for {
		select {
		case <-signals:
			return "signal"
		case <-time.After(300 * time.Millisecond):
		}
		if faulty("reregisters-only-once") && restarts > 0 {
			continue // the watch was on the old file
		}
		if now := identity(s.kubeletSocket()); now != "" && now != s.kubelet && variant != "batching" {
			return "kubelet.sock is another one"
		}
		if faulty("reregisters-without-socket") {
			continue
		}
		if _, err := os.Stat(s.socket()); err != nil {
			if identity(s.kubeletSocket()) != "" || faulty("downgrades-version") {
				return "my socket was deleted"
			}
		}
	}
}

// close ends the current gRPC server, and with it the streams.
func (s *server) close() {
	close(s.stop)
	done := make(chan struct{})
	g := s.grpc
	go func() {
		if faulty("update-goes-to-dead-stream") || faulty("spins-after-disconnect") {
			g.Stop() // which does not wait for their streams
		} else {
			g.GracefulStop()
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
		g.Stop()
	}
	_ = os.Remove(s.socket())
}

func (s *server) shutdown() {
	if faulty("graceful-stop-hangs") {
		s.grpc.GracefulStop() // waits for ListAndWatch, which does not end
	}
	s.close()
}

// notify signals that the inventory has changed. The lock is held.
func (s *server) notify() {
	s.version++
	close(s.changed)
	s.changed = make(chan struct{})
}

// watchHealth looks for the files sick-N.
func (s *server) watchHealth() {
	pause := 200 * time.Millisecond
	if variant == "batching" {
		pause = 3 * time.Second
	}
	for ; ; time.Sleep(pause) {
		if s.ctl == "" {
			continue
		}
		changed := false
		s.mu.Lock()
		for i := range s.chips {
			_, err := os.Stat(filepath.Join(s.ctl, fmt.Sprintf("sick-%d", i)))
			if sick := err == nil; sick != s.chips[i].sick {
				s.chips[i].sick = sick
				s.chips[i].recovered = !sick
				log.Printf("chip %d sick: %v", i, sick)
				changed = true
			}
		}
		if changed {
			s.notify()
		}
		s.mu.Unlock()
		if changed && faulty("update-goes-to-dead-stream") {
			s.updates <- struct{}{}
		}
	}
}

// list returns the current device list.
func (s *server) list(update bool) ([]*api.Device, int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	devices := []*api.Device{}
	if !s.ready {
		return devices, s.version, s.changed
	}
	for i, c := range s.chips {
		health := api.Healthy
		if c.sick {
			health = api.Unhealthy
		}
		if faulty("recovers-in-lower-case") && c.recovered {
			health = "healthy" // not api.Healthy
		}
		topology := &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: c.numa}}}
		if faulty("numa-minus-one") && i%3 == 2 {
			topology.Nodes[0].ID = -1 // what sysfs says of a device behind no NUMA node
		}
		if update && faulty("topology-lost-on-update") {
			topology = nil
		}
		ids := []string{s.ids[i]}
		if variant == "shares" {
			ids = nil
			for share := range 3 {
				ids = append(ids, fmt.Sprintf("%s::%d", s.ids[i], share))
			}
		}
		for _, id := range ids {
			devices = append(devices, &api.Device{ID: id, Health: health, Topology: topology})
		}
	}
	return devices, s.version, s.changed
}

// chipOf returns the chip of a device id.
func (s *server) chipOf(id string) (chip, bool) {
	if variant == "shares" {
		name, share, ok := strings.Cut(id, "::")
		if !ok || len(share) != 1 || share[0] < '0' || share[0] > '2' {
			return chip{}, false
		}
		id = name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready {
		return chip{}, false
	}
	for i, known := range s.ids {
		if known == id {
			return s.chips[i], true
		}
	}
	return chip{}, false
}

// service is what one gRPC server serves.
type service struct {
	api.UnimplementedDevicePluginServer
	*server
	stop <-chan struct{}
}

func (s *service) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	if faulty("options-disagree") {
		return &api.DevicePluginOptions{}, nil // kubelets use these, not those in Register
	}
	return options(), nil
}

func (s *service) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	log.Print("ListAndWatch begins")
	defer log.Print("ListAndWatch ends")
	if variant == "slow" {
		time.Sleep(3 * time.Second)
	}
	last, _, changed := s.list(false)
	if faulty("stale-list-after-restart") {
		s.mu.Lock()
		if s.firstList == nil {
			s.firstList = last
		}
		last = s.firstList
		s.mu.Unlock()
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: last}); err != nil {
		return err
	}
	if faulty("update-goes-to-dead-stream") {
		// All streams read from one channel, even those that the kubelet has left: they find that out when they send.
		for {
			select {
			case <-s.stop:
				if s.isCurrent() {
					return nil
				}
				// an old server: its stop has come, but "there may be an update"
				<-s.updates
				return nil
			case <-s.updates:
				devices, _, _ := s.list(true)
				if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
					log.Printf("sending: %v", err)
					return err
				}
			}
		}
	}
	var timeout <-chan time.Time
	if faulty("stream-times-out") {
		timeout = time.After(15 * time.Second)
	}
	var again <-chan time.Time
	if variant == "batching" {
		ticker := time.NewTicker(2 * time.Second)
		defer ticker.Stop()
		again = ticker.C
	}
	for {
		var block <-chan bool
		if faulty("restart-blocks-on-stop-channel") {
			block = s.blockingStop
		}
		end, gone := s.stop, stream.Context().Done()
		if faulty("graceful-stop-hangs") {
			end = nil
		}
		select {
		case <-end:
			return nil
		case <-block:
			return nil
		case <-timeout:
			return nil
		case <-gone:
			for faulty("spins-after-disconnect") {
				if err := stream.Send(&api.ListAndWatchResponse{Devices: last}); err == nil {
					break // else "try again"
				}
			}
			return nil
		case <-again:
		case <-changed:
		}
		var devices []*api.Device
		devices, _, changed = s.list(true)
		if faulty("partial-updates") {
			devices = difference(devices, last)
			last, _, _ = s.list(true)
		} else {
			last = devices
		}
		if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
	}
}

// isCurrent returns whether the process ends, rather than only this gRPC server.
func (s *service) isCurrent() bool { return false }

// difference returns the devices whose health has changed.
func difference(now, before []*api.Device) []*api.Device {
	health := map[string]string{}
	for _, d := range before {
		health[d.ID] = d.Health
	}
	var changed []*api.Device
	for _, d := range now {
		if health[d.ID] != d.Health {
			changed = append(changed, d)
		}
	}
	return changed
}

func (s *service) GetPreferredAllocation(_ context.Context, request *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	if variant == "cdi-only" {
		return nil, status.Error(codes.Unimplemented, "no preferences")
	}
	response := &api.PreferredAllocationResponse{}
	for _, c := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses,
			&api.ContainerPreferredAllocationResponse{DeviceIDs: s.prefer(c)})
	}
	return response, nil
}

// prefer chooses devices on few NUMA nodes.
func (s *service) prefer(c *api.ContainerPreferredAllocationRequest) []string {
	size := int(c.AllocationSize)
	chosen := []string{}
	has := map[string]bool{}
	perNode := map[int64]int{}
	if !faulty("preferred-ignores-must-include") {
		for _, id := range c.MustIncludeDeviceIDs {
			if !has[id] {
				has[id] = true
				chosen = append(chosen, id)
				if chip, ok := s.chipOf(id); ok {
					perNode[chip.numa] += 1000
				}
			}
		}
	}
	type candidate struct {
		id   string
		chip chip
	}
	var candidates []candidate
	for _, id := range c.AvailableDeviceIDs {
		if chip, ok := s.chipOf(id); ok && !has[id] {
			has[id] = true
			candidates = append(candidates, candidate{id, chip})
			perNode[chip.numa]++
		}
	}
	sort.SliceStable(candidates, func(i, j int) bool {
		a, b := candidates[i].chip, candidates[j].chip
		if a.numa != b.numa {
			if perNode[a.numa] != perNode[b.numa] {
				return perNode[a.numa] > perNode[b.numa]
			}
			return a.numa < b.numa
		}
		return a.index < b.index
	})
	for _, candidate := range candidates {
		if len(chosen) >= size {
			break
		}
		if faulty("preferred-too-small") && len(chosen) > 0 {
			if first, ok := s.chipOf(chosen[0]); ok && first.numa != candidate.chip.numa {
				break // "all from one NUMA node"
			}
		}
		chosen = append(chosen, candidate.id)
	}
	return chosen
}

func (s *service) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	if variant == "slow" {
		time.Sleep(2 * time.Second)
	}
	response := &api.AllocateResponse{}
	for _, c := range request.ContainerRequests {
		answer, err := s.allocate(c.DevicesIds)
		if err != nil {
			return nil, err
		}
		response.ContainerResponses = append(response.ContainerResponses, answer)
		if faulty("one-answer-for-two-containers") {
			break
		}
	}
	return response, nil
}

func (s *service) allocate(ids []string) (*api.ContainerAllocateResponse, error) {
	var allocated []chip
	for _, id := range ids {
		chip, ok := s.chipOf(id)
		if !ok {
			return nil, status.Errorf(codes.NotFound, "no device %q", id)
		}
		if chip.sick {
			return nil, status.Errorf(codes.FailedPrecondition, "device %q is unhealthy", id)
		}
		allocated = append(allocated, chip)
	}
	s.mu.Lock()
	if faulty("refuses-second-allocation") {
		for _, id := range ids {
			if s.inUse[id] {
				s.mu.Unlock()
				return nil, status.Errorf(codes.ResourceExhausted, "device %q is in use", id)
			}
		}
		for _, id := range ids {
			s.inUse[id] = true
		}
	}
	for _, id := range ids {
		s.allocated[id] = true
	}
	s.mu.Unlock()

	if faulty("concurrent-answers-mixed") {
		s.mu.Lock()
		s.current = ids
		s.mu.Unlock()
		time.Sleep(50 * time.Millisecond) // asks the device
		s.mu.Lock()
		ids = s.current
		s.mu.Unlock()
		allocated = nil
		for _, id := range ids {
			chip, _ := s.chipOf(id)
			allocated = append(allocated, chip)
		}
	}

	sort.Slice(allocated, func(i, j int) bool { return allocated[i].index < allocated[j].index })
	answer := &api.ContainerAllocateResponse{
		Envs:        map[string]string{},
		Annotations: map[string]string{},
		Mounts:      []*api.Mount{{ContainerPath: "/usr/lib/chip", HostPath: filepath.Join(s.state, "lib"), ReadOnly: true}},
	}
	var names, cdi []string
	for i, c := range allocated {
		if i > 0 && allocated[i-1].index == c.index {
			continue // a second share of the same chip
		}
		id := s.ids[c.index]
		names = append(names, id)
		cdi = append(cdi, resource+"="+id)
		path := fmt.Sprintf("/dev/chip%d", c.index)
		if faulty("node-by-last-digit") {
			path = "/dev/chip" + id[len(id)-1:]
		}
		if variant != "cdi-only" {
			answer.Devices = append(answer.Devices, &api.DeviceSpec{ContainerPath: path, HostPath: path, Permissions: "rw"})
		}
		scratch := "/scratch/" + id
		if faulty("duplicate-mount") {
			scratch = "/scratch"
		}
		answer.Mounts = append(answer.Mounts, &api.Mount{ContainerPath: scratch, HostPath: filepath.Join(s.state, "scratch", id)})
	}
	if faulty("answers-accumulate") {
		s.mu.Lock()
		s.given = append(s.given, answer.Devices...)
		answer.Devices = append([]*api.DeviceSpec{}, s.given...)
		s.mu.Unlock()
	}
	if faulty("cdi-names-joined") {
		cdi = []string{resource + "=" + strings.Join(names, ",")}
	}
	for _, name := range cdi {
		answer.CdiDevices = append(answer.CdiDevices, &api.CDIDevice{Name: name})
	}
	answer.Envs["CHIP_VISIBLE_DEVICES"] = strings.Join(names, ",")
	answer.Annotations["subject.example/chips"] = strings.Join(names, ",")
	return answer, nil
}

func (s *service) PreStartContainer(ctx context.Context, request *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	for _, id := range request.DevicesIds {
		if _, ok := s.chipOf(id); !ok {
			return nil, status.Errorf(codes.NotFound, "no device %q", id)
		}
		s.mu.Lock()
		known := s.allocated[id]
		s.mu.Unlock()
		if faulty("prestart-needs-own-allocation") && !known {
			return nil, status.Errorf(codes.FailedPrecondition, "device %q was not allocated", id)
		}
		reset := 20 * time.Millisecond
		if faulty("prestart-slow") {
			reset = 9 * time.Second
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(reset):
		}
	}
	return &api.PreStartContainerResponse{}, nil
}
