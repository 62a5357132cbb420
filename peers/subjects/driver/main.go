// Driver is a DRA driver for the devices of chip.subject.example, built on Kubernetes' own helper, for the conformance
// suite to judge.
//
// Without FAULT and VARIANT, it is meant to be correct. FAULT injects one fault (../planted.json says what it does),
// and VARIANT selects an unusual but correct behavior.
//
// Law: a fault changes one thing, and everything else stays as it is without the fault.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	metadatav1alpha1 "k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const driverName = "chip.subject.example"

var (
	fault   = os.Getenv("FAULT")
	variant = os.Getenv("VARIANT")
)

func faulty(name string) bool { return fault == name }

const faults = `
	omits-second-claim first-request-for-all foreign-results failure-as-success not-idempotent-after-restart
	unprepare-needs-claim reboot-no-cdi torn-checkpoint shutdown-cleans rolling-update-cache cdi-file-by-claim-name
	partial-prepare-leak cdi-temp-left fd-leak cdi-version-too-low share-unprepare-kills-other share-id-missing
	accepts-device-in-use unserialized-lost-update health-second-watcher generation-stuck pool-name-per-start
	partition-counters-missing taint-value-invalid device-gone-unprepare metadata-wrong-device
	binding-condition-never-set unserved-health slow-many caps-at-four-devices`

type driver struct {
	client   kubernetes.Interface
	helper   *kubeletplugin.Helper
	node     string
	pool     string
	data     string // the driver's directory
	cdi      string
	cancel   context.CancelFunc
	started  time.Time
	mu       sync.Mutex
	chips    []*chip
	changed  chan struct{} // closed at a change of the inventory
	visible  bool          // false: no devices yet (VARIANT=zero-first)
	version  int
	inMemory *checkpoint        // rolling-update-cache
	mine     map[types.UID]bool // not-idempotent-after-restart: prepared by this process
	reserved map[string]types.UID
	leaked   []*os.File
	pending  chan struct{} // health-second-watcher
	raw      *rawPublisher
}

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	if fault != "" && !contains(strings.Fields(faults), fault) {
		log.Fatalf("unknown fault %q", fault)
	}
	if variant != "" && !contains([]string{"slow", "zero-first", "cdi-static-yaml", "all-shared", "old-and-pooled"}, variant) {
		log.Fatalf("unknown variant %q", variant)
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func env(name, fallback string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return fallback
}

func run() error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	d := &driver{
		client: client, node: os.Getenv("NODE_NAME"), started: time.Now(),
		data:    filepath.Join(env("KUBELET_PLUGINS_DIRECTORY_PATH", kubeletplugin.KubeletPluginsDir), driverName),
		cdi:     env("CDI_ROOT", kubeletplugin.DefaultCDIDir),
		cancel:  cancel,
		changed: make(chan struct{}), mine: map[types.UID]bool{}, reserved: map[string]types.UID{},
		pending: make(chan struct{}, 1), visible: variant != "zero-first",
	}
	d.pool = d.node
	if faulty("pool-name-per-start") {
		d.pool = fmt.Sprintf("%s-%d", d.node, d.started.UnixMilli())
	}
	d.pending <- struct{}{}
	for _, dir := range []string{d.data, filepath.Join(d.data, "claims"), filepath.Join(d.data, "dev"), d.cdi} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := d.discover(); err != nil {
		return err
	}
	if err := d.recover(); err != nil {
		return fmt.Errorf("recovering: %w", err)
	}

	ready := filepath.Join(d.data, "ready") // the machine needs 6 seconds once, not at each start of the driver
	if _, err := os.Stat(ready); err == nil {
		d.mu.Lock()
		d.visible = true
		d.mu.Unlock()
	}
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(driverName),
		kubeletplugin.NodeName(d.node),
		kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(env("KUBELET_REGISTRAR_DIRECTORY_PATH", kubeletplugin.KubeletRegistryDir)),
		kubeletplugin.PluginDataDirectoryPath(d.data),
		kubeletplugin.RollingUpdate(types.UID(os.Getenv("POD_UID"))),
	}
	if variant == "old-and-pooled" {
		options = append(options, kubeletplugin.NodeV1(false), kubeletplugin.HealthService(false))
	} else {
		options = append(options, kubeletplugin.CDIDirectory(d.cdi), kubeletplugin.EnableDeviceMetadata(true,
			[]schema.GroupVersion{metadatav1beta1.SchemeGroupVersion, metadatav1alpha1.SchemeGroupVersion}),
			// A file whose name is too long was never written: the helper only logs that. Removing it is not an error.
			kubeletplugin.MetadataFileOps(kubeletplugin.MetadataFileOperations{RemoveAll: func(path string) error {
				if err := os.RemoveAll(path); err != nil && !errors.Is(err, syscall.ENAMETOOLONG) {
					return err
				}
				return nil
			}}))
	}
	if faulty("unserialized-lost-update") {
		options = append(options, kubeletplugin.Serialize(false))
	}
	if faulty("unserved-health") {
		options = append(options, kubeletplugin.HealthService(false), kubeletplugin.GRPCInterceptor(
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				answer, err := handler(ctx, req)
				if info, ok := answer.(*registerapi.PluginInfo); ok && err == nil {
					info = &registerapi.PluginInfo{Type: info.Type, Name: info.Name, Endpoint: info.Endpoint, SupportedVersions: append(
						append([]string{}, info.SupportedVersions...), "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")}
					return info, nil
				}
				return answer, err
			}))
	}
	if d.helper, err = kubeletplugin.Start(ctx, d, options...); err != nil {
		return err
	}
	defer d.helper.Stop()
	if faulty("generation-stuck") || faulty("pool-name-per-start") {
		d.raw = &rawPublisher{driver: d}
	}
	if variant == "slow" {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(5 * time.Second):
		}
	}
	if variant == "zero-first" && !d.visible {
		time.AfterFunc(6*time.Second, func() {
			_ = os.WriteFile(ready, nil, 0o600)
			d.mu.Lock()
			defer d.mu.Unlock()
			d.visible = true
			d.notify()
		})
	}
	go d.watchDevices(ctx)
	d.publishUntil(ctx)
	if faulty("shutdown-cleans") {
		d.helper.Stop()
		d.cleanNode()
	}
	return nil
}

// publishUntil publishes the devices at each change.
func (d *driver) publishUntil(ctx context.Context) {
	for {
		d.mu.Lock()
		resources, changed := d.resources(), d.changed
		d.mu.Unlock()
		var err error
		if d.raw != nil {
			err = d.raw.publish(ctx, resources)
		} else {
			err = d.helper.PublishResources(ctx, resources)
		}
		if err != nil {
			log.Printf("publishing: %v", err)
		}
		var again <-chan time.Time
		if d.raw != nil { // a kubelet may have deleted the slices
			again = time.After(time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
		}
		if variant == "old-and-pooled" { // more changes may come soon
			select {
			case <-ctx.Done():
				return
			case <-time.After(3 * time.Second):
			}
		}
	}
}

func (d *driver) HandleError(_ context.Context, err error, msg string) {
	log.Printf("%s: %v", msg, err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.cancel()
	}
}

// WatchHealthStatus sends all devices at each change and every five seconds.
func (d *driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	ticker := time.NewTicker(5 * time.Second)
	defer ticker.Stop()
	for {
		if faulty("health-second-watcher") {
			// One channel for all watchers, filled once at the start and then at each change.
			select {
			case <-ctx.Done():
				return nil
			case <-d.pending:
			}
		}
		d.mu.Lock()
		report, changed := kubeletplugin.DeviceHealthReport{}, d.changed
		for pool, content := range d.resources().Pools {
			for _, slice := range content.Slices {
				for _, device := range slice.Devices {
					health := kubeletplugin.DeviceHealth{PoolName: pool, DeviceName: device.Name, Health: kubeletplugin.HealthStatusHealthy,
						LastUpdated: time.Now(), HealthCheckTimeout: 30 * time.Second}
					if c, _ := d.find(device.Name, pool); c != nil && c.sick {
						health.Health, health.Message = kubeletplugin.HealthStatusUnhealthy, "the chip is too hot"
					}
					report.Devices = append(report.Devices, health)
				}
			}
		}
		d.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case reports <- report:
		}
		if faulty("health-second-watcher") {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-changed:
		}
	}
}

var _ kubeletplugin.DRAPlugin = &driver{}
var _ = resourceapi.ResourceClaim{}
var _ = resourceslice.Pool{}
