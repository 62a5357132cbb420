package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/ptr"
)

// world is a node: everything that remains when a driver ends.
type world struct {
	t      *testing.T
	dir    string
	client *fake.Clientset
}

func newWorld(t *testing.T) *world {
	return &world{t, t.TempDir(), fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "n"}})}
}

func (w *world) start() *driver {
	w.t.Helper()
	d, err := w.tryStart()
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w *world) tryStart() (*driver, error) {
	d := &driver{client: w.client, node: "node", pool: "node", data: filepath.Join(w.dir, "data"), cdi: filepath.Join(w.dir, "cdi"),
		changed: make(chan struct{}), mine: map[types.UID]bool{}, reserved: map[string]types.UID{}, pending: make(chan struct{}, 1), visible: true,
		cancel: func() {}}
	d.pending <- struct{}{}
	if faulty("pool-name-per-start") {
		d.pool = fmt.Sprintf("node-%d", time.Now().UnixNano())
	}
	for _, dir := range []string{d.data, filepath.Join(d.data, "claims"), filepath.Join(d.data, "dev"), d.cdi} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := d.discover(); err != nil {
		return nil, err
	}
	return d, d.recover()
}

func (w *world) files() []string {
	files, _ := filepath.Glob(filepath.Join(w.dir, "cdi", "*"))
	return files
}

func claim(uid string, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim-" + uid, UID: types.UID(uid)},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
	for i, device := range devices {
		result := resourceapi.DeviceRequestAllocationResult{Request: fmt.Sprintf("r%d", i), Driver: driverName, Pool: "node", Device: device}
		if device == "chip-7" {
			result.ShareID = ptr.To(types.UID("share-" + uid))
		}
		if device == "foreign" {
			result.Driver = "other.example"
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, result)
	}
	return c
}

func (w *world) prepare(d *driver, claims ...*resourceapi.ResourceClaim) map[types.UID]kubeletplugin.PrepareResult {
	w.t.Helper()
	results, err := d.PrepareResourceClaims(context.Background(), claims)
	if err != nil {
		w.t.Fatal(err)
	}
	return results
}

func (w *world) unprepare(d *driver, c *resourceapi.ResourceClaim) error {
	results, err := d.UnprepareResourceClaims(context.Background(), []kubeletplugin.NamespacedObject{{
		NamespacedName: types.NamespacedName{Namespace: c.Namespace, Name: c.Name}, UID: c.UID}})
	if err != nil {
		return err
	}
	return results[c.UID]
}

func specs(files []string) map[string]int {
	names := map[string]int{}
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), ".") {
			continue
		}
		data, _ := os.ReadFile(file)
		var spec cdiSpec
		_ = json.Unmarshal(data, &spec)
		for _, device := range spec.Devices {
			names[spec.Kind+"="+device.Name]++
		}
	}
	return names
}

// resolves returns whether each CDI name in an answer is in exactly one file.
func (w *world) resolves(result kubeletplugin.PrepareResult) bool {
	names := specs(w.files())
	for _, device := range result.Devices {
		for _, name := range device.CDIDeviceIDs {
			if names[name] != 1 {
				return false
			}
		}
	}
	return len(result.Devices) > 0
}

// Each function returns whether the fault's symptom is present.
var symptoms = map[string]func(*world) bool{
	"omits-second-claim": func(w *world) bool { return len(w.prepare(w.start(), claim("a", "chip-0"), claim("b", "chip-1"))) != 2 },
	"first-request-for-all": func(w *world) bool {
		return w.prepare(w.start(), claim("a", "chip-0", "chip-1"))["a"].Devices[1].Requests[0] != "r1"
	},
	"foreign-results":    func(w *world) bool { return w.prepare(w.start(), claim("a", "chip-0", "foreign"))["a"].Err != nil },
	"failure-as-success": func(w *world) bool { return w.prepare(w.start(), claim("a", "chip-99"))["a"].Err == nil },
	"not-idempotent-after-restart": func(w *world) bool {
		d, c := w.start(), claim("a", "chip-0")
		w.prepare(d, c)
		if w.prepare(d, c)["a"].Err != nil {
			w.t.Fatal("also without a restart")
		}
		return w.prepare(w.start(), c)["a"].Err != nil
	},
	"unprepare-needs-claim": func(w *world) bool {
		d, c := w.start(), claim("a", "chip-0")
		w.prepare(d, c)
		return w.unprepare(d, c) != nil
	},
	"reboot-no-cdi": func(w *world) bool {
		c := claim("a", "chip-0")
		w.prepare(w.start(), c)
		_ = os.RemoveAll(filepath.Join(w.dir, "cdi"))
		return !w.resolves(w.prepare(w.start(), c)["a"])
	},
	"torn-checkpoint": func(w *world) bool {
		d := w.start()
		go func() {
			_, _ = d.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{claim("a", "chip-0")})
		}()
		time.Sleep(200 * time.Millisecond) // and killed now
		data, _ := os.ReadFile(d.checkpointPath())
		bad := !json.Valid(data)
		time.Sleep(400 * time.Millisecond)
		_ = os.WriteFile(d.checkpointPath(), data, 0o600)
		_, err := w.tryStart()
		return bad && err != nil
	},
	"shutdown-cleans": func(w *world) bool {
		return strings.Contains(source("main.go"), `faulty("shutdown-cleans")`) && faulty("shutdown-cleans")
	},
	"rolling-update-cache": func(w *world) bool {
		old, c := w.start(), claim("a", "chip-0")
		w.prepare(old, claim("z", "chip-3"))
		fresh := w.start()
		w.prepare(old, c)
		_ = w.unprepare(fresh, c)
		return len(w.files()) != 1
	},
	"cdi-file-by-claim-name": func(w *world) bool {
		d, a, b := w.start(), claim("a", "chip-0"), claim("b", "chip-1")
		b.Name, b.Namespace = a.Name, "other"
		first := w.prepare(d, a)["a"]
		w.prepare(d, b)
		return !w.resolves(first)
	},
	"partial-prepare-leak": func(w *world) bool {
		d := w.start()
		w.prepare(d, claim("a", "chip-0", "chip-99"))
		_ = w.unprepare(d, claim("a"))
		return w.prepare(d, claim("b", "chip-0"))["b"].Err != nil
	},
	"cdi-temp-left": func(w *world) bool { return !w.resolves(w.prepare(w.start(), claim("a", "chip-0"))["a"]) },
	"fd-leak": func(w *world) bool {
		d := w.start()
		before, _ := os.ReadDir("/proc/self/fd")
		for i := range 20 {
			c := claim(fmt.Sprint(i), "chip-0")
			w.prepare(d, c)
			_ = w.unprepare(d, c)
		}
		after, _ := os.ReadDir("/proc/self/fd")
		return len(after) > len(before)+20
	},
	"cdi-version-too-low": func(w *world) bool {
		w.prepare(w.start(), claim("a", "chip-0"))
		data, _ := os.ReadFile(w.files()[0])
		return strings.Contains(string(data), "0.3.0")
	},
	"share-unprepare-kills-other": func(w *world) bool {
		d, a, b := w.start(), claim("a", "chip-7"), claim("b", "chip-7")
		w.prepare(d, a)
		second := w.prepare(d, b)["b"]
		_ = w.unprepare(d, a)
		return !w.resolves(second)
	},
	"share-id-missing": func(w *world) bool { return w.prepare(w.start(), claim("a", "chip-7"))["a"].Devices[0].ShareID == nil },
	"accepts-device-in-use": func(w *world) bool {
		d := w.start()
		w.prepare(d, claim("a", "chip-0"))
		return w.prepare(d, claim("b", "chip-0"))["b"].Err == nil
	},
	"unserialized-lost-update": func(w *world) bool {
		d := w.start()
		var group sync.WaitGroup
		for i := range 2 {
			group.Add(1)
			go func() {
				defer group.Done()
				_, _ = d.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{claim(fmt.Sprint(i), fmt.Sprintf("chip-%d", i))})
			}()
		}
		group.Wait()
		state, err := d.load()
		return err != nil || len(state.Claims) != 2
	},
	"health-second-watcher": func(w *world) bool {
		d := w.start()
		watch := func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			reports := make(chan kubeletplugin.DeviceHealthReport)
			go func() { _ = d.WatchHealthStatus(ctx, reports) }()
			select {
			case <-reports:
				return true
			case <-ctx.Done():
				return false
			}
		}
		return watch() && !watch()
	},
	"generation-stuck": func(w *world) bool {
		if fault == "" {
			return false // the helper publishes
		}
		d := w.start()
		p := &rawPublisher{d}
		_ = p.publish(context.Background(), d.resources())
		_ = os.WriteFile(filepath.Join(d.data, "gone-3"), nil, 0o600)
		d.look()
		_ = p.publish(context.Background(), d.resources())
		list, _ := w.client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
		return len(list.Items) == 2 && list.Items[0].Spec.Pool.Generation == 1 && len(list.Items[0].Spec.Devices) == 9
	},
	"pool-name-per-start": func(w *world) bool {
		if fault == "" {
			return false
		}
		for range 2 {
			d := w.start()
			if err := (&rawPublisher{d}).publish(context.Background(), d.resources()); err != nil {
				w.t.Fatal(err)
			}
		}
		list, _ := w.client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
		return len(list.Items) == 4
	},
	"partition-counters-missing": func(w *world) bool {
		d := w.start()
		for _, device := range d.resources().Pools["node"].Slices[0].Devices {
			if device.Name == "chip-6-p0" {
				return len(device.ConsumesCounters) == 0
			}
		}
		return false
	},
	"taint-value-invalid": func(w *world) bool {
		d := w.start()
		d.chips[2].sick = true
		return strings.Contains(d.resources().Pools["node"].Slices[0].Devices[2].Taints[0].Value, " ")
	},
	"device-gone-unprepare": func(w *world) bool {
		d, c := w.start(), claim("a", "chip-3")
		w.prepare(d, c)
		d.chips[3].gone = true
		return w.unprepare(d, c) != nil
	},
	"metadata-wrong-device": func(w *world) bool {
		devices := w.prepare(w.start(), claim("a", "chip-0", "chip-1"))["a"].Devices
		return *devices[1].Metadata.Attributes["index"].IntValue != 1
	},
	"binding-condition-never-set": func(w *world) bool {
		return len(w.start().resources().Pools["node"].Slices[0].Devices[5].BindingConditions) > 0
	},
	"unserved-health": func(w *world) bool { return faulty("unserved-health") }, // see the run with grpc
	"slow-many": func(w *world) bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second) // for 45
		defer cancel()
		results, _ := w.start().PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim("a", "chip-0")})
		return results["a"].Err != nil
	},
	"caps-at-four-devices": func(w *world) bool {
		return len(w.prepare(w.start(), claim("a", "chip-0", "chip-1", "chip-2", "chip-3", "chip-4"))["a"].Devices) != 5
	},
}

func source(name string) string { data, _ := os.ReadFile(name); return string(data) }

func TestFaults(t *testing.T) {
	for _, name := range strings.Fields(faults) {
		symptom := symptoms[name]
		if symptom == nil {
			t.Errorf("no test of %s", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			defer func() { fault = "" }()
			fault = ""
			if symptom(newWorld(t)) {
				t.Error("the good driver has the symptom")
			}
			fault = name
			if !symptom(newWorld(t)) {
				t.Error("the faulty driver does not have the symptom")
			}
		})
	}
}

func TestLostCheckpoint(t *testing.T) {
	w := newWorld(t)
	d, c := w.start(), claim("a", "chip-0")
	w.prepare(d, c)
	if _, err := w.client.ResourceV1().ResourceClaims("default").Create(context.Background(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_ = os.WriteFile(d.checkpointPath(), []byte(`{"ver`), 0o600)
	d = w.start()
	if w.prepare(d, claim("b", "chip-0"))["b"].Err == nil {
		t.Error("given twice")
	}
	_ = w.client.ResourceV1().ResourceClaims("default").Delete(context.Background(), c.Name, metav1.DeleteOptions{})
	if err := w.prepare(d, claim("b", "chip-0"))["b"].Err; err != nil {
		t.Error(err)
	}
}

var _ = runtime.RawExtension{}
