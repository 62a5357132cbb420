package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"
)

const chips = 8

// chip is a device of the machine. Chip 6 can be divided into two parts, and chip 7 can be shared.
type chip struct {
	index      int
	gone, sick bool
}

// discover finds the chips, and creates their device nodes: pipes, which can be created without root.
func (d *driver) discover() error {
	for i := range chips {
		d.chips = append(d.chips, &chip{index: i})
	}
	d.look()
	for _, c := range d.chips {
		for _, name := range namesOf(c.index) {
			if err := syscall.Mkfifo(d.nodePath(name), 0o666); err != nil && !os.IsExist(err) {
				return err
			}
		}
	}
	return nil
}

func (d *driver) nodePath(name string) string { return filepath.Join(d.data, "dev", name) }

// namesOf returns the devices of a chip.
func namesOf(index int) []string {
	name := fmt.Sprintf("chip-%d", index)
	if index == 6 && variant != "all-shared" {
		return []string{name + "-full", name + "-p0", name + "-p1"}
	}
	return []string{name}
}

// unitsOf returns the parts of the hardware that a device occupies.
func unitsOf(name string) []string {
	if name == "chip-6-full" {
		return []string{"chip-6-p0", "chip-6-p1"}
	}
	return []string{name}
}

func shared(index int) bool { return index == 7 || variant == "all-shared" }

// find returns the chip of a device, or nil if there is none or it is gone. The lock is held.
func (d *driver) find(device, pool string) (*chip, bool) {
	if !d.visible {
		return nil, false
	}
	for _, c := range d.chips {
		for _, name := range namesOf(c.index) {
			if name == device && d.poolOf(c) == pool {
				return c, !c.gone
			}
		}
	}
	return nil, false
}

// look reads the files gone-N and sick-N.
func (d *driver) look() bool {
	changed := false
	for _, c := range d.chips {
		_, goneErr := os.Stat(filepath.Join(d.data, fmt.Sprintf("gone-%d", c.index)))
		_, sickErr := os.Stat(filepath.Join(d.data, fmt.Sprintf("sick-%d", c.index)))
		if gone, sick := goneErr == nil, sickErr == nil; gone != c.gone || sick != c.sick {
			c.gone, c.sick, changed = gone, sick, true
			log.Printf("chip %d: gone %v, sick %v", c.index, gone, sick)
		}
	}
	return changed
}

func (d *driver) watchDevices(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(250 * time.Millisecond):
		}
		d.mu.Lock()
		if d.look() {
			d.notify()
		}
		d.mu.Unlock()
	}
}

// notify signals that the inventory has changed. The lock is held.
func (d *driver) notify() {
	close(d.changed)
	d.changed = make(chan struct{})
	select {
	case d.pending <- struct{}{}:
	default:
	}
}

func attributesOf(c *chip, name string) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	return map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"index":         {IntValue: ptr.To(int64(c.index))},
		"model":         {StringValue: ptr.To("subject-1000")},
		"serial":        {StringValue: ptr.To(fmt.Sprintf("SN-%04d-%s", 4200+c.index, name))},
		"numa":          {IntValue: ptr.To(int64(c.index / (chips / 2)))},
		"partition":     {BoolValue: ptr.To(c.index == 6 && name != "chip-6-full")},
		"driverVersion": {VersionValue: ptr.To("1.2.3")},
	}
}

func (d *driver) poolOf(c *chip) string {
	if variant == "old-and-pooled" {
		return fmt.Sprintf("%s-numa%d", d.pool, c.index/(chips/2))
	}
	return d.pool
}

// resources is what is published. The lock is held.
func (d *driver) resources() resourceslice.DriverResources {
	pools := map[string]resourceslice.Pool{}
	devices := map[string][]resourceapi.Device{d.pool: nil}
	if variant == "old-and-pooled" {
		devices = map[string][]resourceapi.Device{d.pool + "-numa0": nil, d.pool + "-numa1": nil}
	}
	counters := false
	for _, c := range d.chips {
		if c.gone || !d.visible {
			continue
		}
		for _, name := range namesOf(c.index) {
			memory := "16Gi"
			if name == "chip-6-p0" || name == "chip-6-p1" {
				memory = "8Gi"
			}
			device := resourceapi.Device{
				Name:       name,
				Attributes: attributesOf(c, name),
				Capacity:   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse(memory)}},
			}
			if shared(c.index) {
				device.AllowMultipleAllocations = ptr.To(true)
				device.Capacity["memory"] = resourceapi.DeviceCapacity{Value: resource.MustParse(memory), RequestPolicy: &resourceapi.CapacityRequestPolicy{
					Default:    ptr.To(resource.MustParse("2Gi")),
					ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("1Gi")), Step: ptr.To(resource.MustParse("1Gi"))},
				}}
			}
			if len(namesOf(c.index)) > 1 {
				counters = true
				if !faulty("partition-counters-missing") {
					device.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "chip-6", Counters: map[string]resourceapi.Counter{
						"memory": {Value: resource.MustParse(memory)}}}}
				}
			}
			if c.sick {
				value := "too-hot"
				if faulty("taint-value-invalid") {
					value = "temperature above limit (95 C)"
				}
				device.Taints = []resourceapi.DeviceTaint{{Key: driverName + "/sick", Value: value, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
			if faulty("binding-condition-never-set") && c.index == 5 {
				device.BindsToNode = ptr.To(true)
				device.BindingConditions = []string{"chip.subject.example/attached"}
				device.BindingFailureConditions = []string{"chip.subject.example/attach-failed"}
			}
			devices[d.poolOf(c)] = append(devices[d.poolOf(c)], device)
		}
	}
	for pool, list := range devices {
		var slices []resourceslice.Slice
		if variant == "old-and-pooled" {
			for _, device := range list {
				slices = append(slices, resourceslice.Slice{Devices: []resourceapi.Device{device}})
			}
		}
		if len(slices) == 0 {
			slices = []resourceslice.Slice{{Devices: list}}
		}
		if counters && (pool == d.pool || pool == d.pool+"-numa1") {
			slices = append(slices, resourceslice.Slice{SharedCounters: []resourceapi.CounterSet{{
				Name: "chip-6", Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("16Gi")}}}}})
		}
		pools[pool] = resourceslice.Pool{Slices: slices}
	}
	return resourceslice.DriverResources{Pools: pools}
}

// rawPublisher writes ResourceSlices without the helper, as drivers that are older than the helper do.
type rawPublisher struct{ driver *driver }

func (p *rawPublisher) publish(ctx context.Context, resources resourceslice.DriverResources) error {
	d := p.driver
	node, err := d.client.CoreV1().Nodes().Get(ctx, d.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	client := d.client.ResourceV1().ResourceSlices()
	for pool, content := range resources.Pools {
		for i, slice := range content.Slices {
			name := fmt.Sprintf("%s-%s-%d", pool, driverName, i)
			wanted := &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "v1", Kind: "Node", Name: d.node, UID: node.UID, Controller: ptr.To(true)}}},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: driverName, NodeName: ptr.To(d.node),
					// The generation is never bumped (generation-stuck), the pool never gets old (pool-name-per-start).
					Pool:           resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: int64(len(content.Slices))},
					Devices:        slice.Devices,
					SharedCounters: slice.SharedCounters,
				},
			}
			old, err := client.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				if _, err := client.Create(ctx, wanted, metav1.CreateOptions{}); err != nil {
					return err
				}
				continue
			}
			if err != nil {
				return err
			}
			if equality.Semantic.DeepEqual(old.Spec.Devices, wanted.Spec.Devices) &&
				equality.Semantic.DeepEqual(old.Spec.SharedCounters, wanted.Spec.SharedCounters) {
				continue
			}
			if faulty("pool-name-per-start") {
				wanted.Spec.Pool.Generation = old.Spec.Pool.Generation + 1
			}
			wanted.ResourceVersion = old.ResourceVersion
			if _, err := client.Update(ctx, wanted, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}
