package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// asProgram makes the test program act as the plugin itself.
const asProgram = "SUBJECT_OF_A_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// kubelet is a small kubelet: it accepts registrations, and handles them as the test specifies.
type kubelet struct {
	api.UnimplementedRegistrationServer
	t          *testing.T
	dir        string
	server     *grpc.Server
	registered chan *api.RegisterRequest
}

func (k *kubelet) Register(_ context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	if r.Version != api.Version {
		return nil, fmt.Errorf("unsupported version %s", r.Version)
	}
	k.registered <- r
	return &api.Empty{}, nil
}

func (k *kubelet) start() {
	k.t.Helper()
	sockets, _ := filepath.Glob(filepath.Join(k.dir, "*.sock"))
	for _, path := range sockets {
		_ = os.Remove(path)
	}
	listener, err := net.Listen("unix", filepath.Join(k.dir, "kubelet.sock"))
	if err != nil {
		k.t.Fatal(err)
	}
	k.registered = make(chan *api.RegisterRequest, 10)
	k.server = grpc.NewServer()
	api.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(listener) }()
}

func (k *kubelet) wait(seconds int) bool {
	select {
	case <-k.registered:
		time.Sleep(300 * time.Millisecond) // until the answer has arrived
		return true
	case <-time.After(time.Duration(seconds) * time.Second):
		return false
	}
}

func (k *kubelet) dial() (api.DevicePluginClient, *grpc.ClientConn) {
	c, err := grpc.NewClient("unix:"+filepath.Join(k.dir, socketName), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		k.t.Fatal(err)
	}
	return api.NewDevicePluginClient(c), c
}

type run struct {
	*kubelet
	t     *testing.T
	ctl   string
	cmd   *exec.Cmd
	fault string
}

func (r *run) launch() {
	r.cmd = exec.Command(os.Args[0], "--device-plugin-path", r.dir, "--ctl", r.ctl, "--state", filepath.Join(r.ctl, "state"))
	r.cmd.Env = append(os.Environ(), asProgram+"=1", "FAULT="+r.fault)
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
}

// up starts everything and waits for the registration.
func (r *run) up() (api.DevicePluginClient, *grpc.ClientConn) {
	r.kubelet.start()
	r.launch()
	if !r.wait(5) {
		r.t.Fatal("not registered")
	}
	return r.dial()
}

func (r *run) sick(i int, sick bool) {
	path := filepath.Join(r.ctl, fmt.Sprintf("sick-%d", i))
	if sick {
		_ = os.WriteFile(path, nil, 0o600)
	} else {
		_ = os.Remove(path)
	}
}

type stream struct {
	lists chan []*api.Device
	ended chan error
	stop  func()
}

func (r *run) watch(c api.DevicePluginClient) *stream {
	ctx, cancel := context.WithCancel(context.Background())
	s := &stream{make(chan []*api.Device, 100), make(chan error, 1), cancel}
	answers, err := c.ListAndWatch(ctx, &api.Empty{})
	if err != nil {
		s.ended <- err
		return s
	}
	go func() {
		for {
			list, err := answers.Recv()
			if err != nil {
				s.ended <- err
				return
			}
			s.lists <- list.Devices
		}
	}()
	return s
}

func (s *stream) next() []*api.Device {
	select {
	case list := <-s.lists:
		return list
	case <-time.After(2 * time.Second):
		return nil
	}
}

func (r *run) allocate(c api.DevicePluginClient, ids ...[]string) (*api.AllocateResponse, error) {
	request := &api.AllocateRequest{}
	for _, list := range ids {
		request.ContainerRequests = append(request.ContainerRequests, &api.ContainerAllocateRequest{DevicesIds: list})
	}
	return c.Allocate(context.Background(), request)
}

func (r *run) prefer(c api.DevicePluginClient, available, must []string, size int32) []string {
	answer, err := c.GetPreferredAllocation(context.Background(), &api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{
		{AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: size}}})
	if err != nil {
		r.t.Fatal(err)
	}
	return answer.ContainerResponses[0].DeviceIDs
}

func ids(list []*api.Device) string {
	var all []string
	for _, d := range list {
		all = append(all, d.ID)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func healthOf(list []*api.Device, id string) string {
	for _, d := range list {
		if d.ID == id {
			return d.Health
		}
	}
	return "absent"
}

func paths(a *api.ContainerAllocateResponse) string {
	var all []string
	for _, d := range a.Devices {
		all = append(all, d.HostPath)
	}
	return strings.Join(all, " ")
}

func (r *run) cpu() float64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.cmd.Process.Pid))
	fields := strings.Fields(string(data))
	var ticks float64
	_, _ = fmt.Sscan(fields[13], &ticks)
	return ticks / 100
}

func (r *run) exitsIn(seconds int) bool {
	done := make(chan struct{})
	cmd := r.cmd
	go func() { _ = cmd.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(time.Duration(seconds) * time.Second):
		return false
	}
}

var symptoms = map[string]func(*run) bool{
	"register-before-serving": func(r *run) bool {
		c, _ := r.up()
		_, err := c.GetDevicePluginOptions(context.Background(), &api.Empty{})
		return err != nil
	},
	"options-disagree": func(r *run) bool {
		c, _ := r.up()
		o, err := c.GetDevicePluginOptions(context.Background(), &api.Empty{})
		return err == nil && !o.PreStartRequired
	},
	"downgrades-version": func(r *run) bool {
		r.launch()
		time.Sleep(time.Second)
		r.kubelet.start()
		return !r.wait(5)
	},
	"reregisters-only-once": func(r *run) bool {
		r.up()
		r.server.Stop()
		r.kubelet.start()
		if !r.wait(5) {
			r.t.Fatal("not even once")
		}
		time.Sleep(time.Second)
		r.server.Stop()
		r.kubelet.start()
		return !r.wait(5)
	},
	"reregisters-without-socket": func(r *run) bool {
		r.up()
		r.server.Stop()
		r.kubelet.start()
		if !r.wait(5) {
			r.t.Fatal("not registered again")
		}
		_, err := os.Stat(filepath.Join(r.dir, socketName))
		return err != nil
	},
	"stale-list-after-restart": func(r *run) bool {
		c, conn := r.up()
		s := r.watch(c)
		s.next()
		r.sick(3, true)
		if healthOf(s.next(), "chip-3") != api.Unhealthy {
			r.t.Fatal("no update")
		}
		_ = conn.Close()
		r.server.Stop()
		r.kubelet.start()
		r.wait(5)
		c, _ = r.dial()
		return healthOf(r.watch(c).next(), "chip-3") == api.Healthy
	},
	"update-goes-to-dead-stream": func(r *run) bool {
		c, conn := r.up()
		s := r.watch(c)
		s.next()
		_ = conn.Close()
		r.server.Stop()
		r.kubelet.start()
		if !r.wait(8) {
			r.t.Fatal("not registered again")
		}
		c, _ = r.dial()
		s = r.watch(c)
		s.next()
		r.sick(3, true)
		return s.next() == nil
	},
	"stream-times-out": func(r *run) bool {
		c, _ := r.up()
		select {
		case <-r.watch(c).ended:
			return true
		case <-time.After(17 * time.Second):
			return false
		}
	},
	"recovers-in-lower-case": func(r *run) bool {
		c, _ := r.up()
		s := r.watch(c)
		s.next()
		r.sick(3, true)
		if healthOf(s.next(), "chip-3") != api.Unhealthy {
			r.t.Fatal("no update")
		}
		r.sick(3, false)
		return healthOf(s.next(), "chip-3") != api.Healthy
	},
	"partial-updates": func(r *run) bool {
		c, _ := r.up()
		s := r.watch(c)
		s.next()
		r.sick(3, true)
		return len(s.next()) == 1
	},
	"topology-lost-on-update": func(r *run) bool {
		c, _ := r.up()
		s := r.watch(c)
		if s.next()[0].Topology == nil {
			r.t.Fatal("never any topology")
		}
		r.sick(3, true)
		return s.next()[0].Topology == nil
	},
	"numa-minus-one": func(r *run) bool {
		c, _ := r.up()
		return r.watch(c).next()[2].Topology.Nodes[0].ID == -1
	},
	"one-answer-for-two-containers": func(r *run) bool {
		c, _ := r.up()
		a, err := r.allocate(c, []string{"chip-0"}, []string{"chip-1"})
		return err == nil && len(a.ContainerResponses) == 1
	},
	"node-by-last-digit": func(r *run) bool {
		c, _ := r.up()
		a, err := r.allocate(c, []string{"chip-11"})
		return err == nil && paths(a.ContainerResponses[0]) == "/dev/chip1"
	},
	"answers-accumulate": func(r *run) bool {
		c, _ := r.up()
		_, _ = r.allocate(c, []string{"chip-0"})
		a, _ := r.allocate(c, []string{"chip-1"})
		return paths(a.ContainerResponses[0]) != "/dev/chip1"
	},
	"refuses-second-allocation": func(r *run) bool {
		c, _ := r.up()
		_, _ = r.allocate(c, []string{"chip-0"})
		_, err := r.allocate(c, []string{"chip-0"})
		return err != nil
	},
	"duplicate-mount": func(r *run) bool {
		c, _ := r.up()
		a, _ := r.allocate(c, []string{"chip-0", "chip-1"})
		m := a.ContainerResponses[0].Mounts
		return m[1].ContainerPath == m[2].ContainerPath
	},
	"cdi-names-joined": func(r *run) bool {
		c, _ := r.up()
		a, _ := r.allocate(c, []string{"chip-0", "chip-1"})
		return len(a.ContainerResponses[0].CdiDevices) == 1
	},
	"preferred-ignores-must-include": func(r *run) bool {
		c, _ := r.up()
		return !slices.Contains(r.prefer(c, []string{"chip-0", "chip-1", "chip-8"}, []string{"chip-8"}, 2), "chip-8")
	},
	"preferred-too-small": func(r *run) bool {
		c, _ := r.up()
		if len(r.prefer(c, []string{"chip-0", "chip-1", "chip-8"}, nil, 2)) != 2 {
			r.t.Fatal("also on one NUMA node")
		}
		return len(r.prefer(c, []string{"chip-0", "chip-1", "chip-8"}, nil, 3)) != 3
	},
	"prestart-slow": func(r *run) bool {
		c, _ := r.up()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := c.PreStartContainer(ctx, &api.PreStartContainerRequest{DevicesIds: []string{"chip-0"}})
		return err != nil
	},
	"prestart-needs-own-allocation": func(r *run) bool {
		c, _ := r.up()
		_, err := c.PreStartContainer(context.Background(), &api.PreStartContainerRequest{DevicesIds: []string{"chip-0"}})
		return err != nil
	},
	"concurrent-answers-mixed": func(r *run) bool {
		c, _ := r.up()
		var group sync.WaitGroup
		wrong := false
		for i := range 2 {
			group.Add(1)
			go func() {
				defer group.Done()
				a, err := r.allocate(c, []string{fmt.Sprintf("chip-%d", i)})
				if err == nil && paths(a.ContainerResponses[0]) != fmt.Sprintf("/dev/chip%d", i) {
					wrong = true
				}
			}()
		}
		group.Wait()
		return wrong
	},
	"restart-blocks-on-stop-channel": func(r *run) bool {
		c, conn := r.up()
		r.watch(c).next()
		_ = conn.Close()
		r.server.Stop()
		time.Sleep(300 * time.Millisecond)
		r.kubelet.start()
		return !r.wait(5)
	},
	"spins-after-disconnect": func(r *run) bool {
		c, conn := r.up()
		r.watch(c).next()
		_ = conn.Close()
		time.Sleep(200 * time.Millisecond)
		before := r.cpu()
		time.Sleep(2 * time.Second)
		return r.cpu()-before > 0.15
	},
	"graceful-stop-hangs": func(r *run) bool {
		c, _ := r.up()
		r.watch(c).next()
		_ = r.cmd.Process.Signal(syscall.SIGTERM)
		return !r.exitsIn(4)
	},
	"stale-socket-blocks-start": func(r *run) bool {
		r.up()
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
		r.launch()
		return !r.wait(5)
	},
	"ids-change-on-restart": func(r *run) bool {
		c, _ := r.up()
		first := ids(r.watch(c).next())
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
		r.launch()
		r.wait(5)
		c, _ = r.dial()
		return ids(r.watch(c).next()) != first
	},
	"id-too-long": func(r *run) bool {
		c, _ := r.up()
		return len(r.watch(c).next()[0].ID) > 63
	},
	"removes-other-sockets": func(r *run) bool {
		r.kubelet.start()
		other, err := net.Listen("unix", filepath.Join(r.dir, "other.sock"))
		if err != nil {
			r.t.Fatal(err)
		}
		defer other.Close()
		r.launch()
		r.wait(5)
		_, err = os.Stat(filepath.Join(r.dir, "other.sock"))
		return err != nil
	},
}

func TestFaults(t *testing.T) {
	for name := range knownFaults {
		symptom := symptoms[name]
		if symptom == nil {
			t.Errorf("no test of %s", name)
			continue
		}
		for _, planted := range []string{"", name} {
			t.Run(name+"="+planted, func(t *testing.T) {
				dir, err := os.MkdirTemp("", "p")
				if err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(dir)
				r := &run{t: t, kubelet: &kubelet{t: t, dir: dir}, ctl: t.TempDir(), fault: planted}
				defer func() { _ = r.cmd.Process.Kill(); _ = r.cmd.Wait(); r.server.Stop() }()
				if symptom(r) != (planted != "") {
					t.Error("it has the symptom:", planted == "")
				}
			})
		}
	}
}
