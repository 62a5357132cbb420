package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

const cdiKind = "subject.example/chip"
const cdiPrefix = "subject.example-chip_"
const staticCDI = "subject.example-chip.yaml"

// prepared is a device of a prepared claim.
type prepared struct {
	Request string     `json:"request"`
	Pool    string     `json:"pool"`
	Device  string     `json:"device"`
	ShareID *types.UID `json:"shareID,omitempty"`
	Admin   bool       `json:"admin,omitempty"`
	CDI     string     `json:"cdi"`
	Mode    string     `json:"mode,omitempty"`
}

type preparedClaim struct {
	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	Devices   []prepared `json:"devices"`
	// Rebuilt from the API server: it was allocated, but perhaps never prepared.
	Rebuilt bool `json:"rebuilt,omitempty"`
}

type checkpoint struct {
	Version  int                          `json:"version"`
	Claims   map[types.UID]*preparedClaim `json:"claims"`
	Checksum string                       `json:"checksum"`
}

func (c *checkpoint) sum() string {
	data, _ := json.Marshal(c.Claims)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

func (d *driver) checkpointPath() string { return filepath.Join(d.data, "checkpoint.json") }

// lock excludes other instances of the driver (rolling updates) and other calls.
func (d *driver) lock() (func(), error) {
	if faulty("unserialized-lost-update") {
		return func() {}, nil
	}
	file, err := os.OpenFile(filepath.Join(d.data, "state.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if faulty("fd-leak") { // the lock is released, the file stays open
		d.mu.Lock()
		d.leaked = append(d.leaked, file)
		d.mu.Unlock()
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
			return nil, err
		}
		return func() { _ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN) }, nil
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		_ = file.Close()
		return nil, err
	}
	return func() { _ = file.Close() }, nil
}

func (d *driver) load() (*checkpoint, error) {
	if faulty("rolling-update-cache") && d.inMemory != nil {
		return d.inMemory, nil
	}
	state := &checkpoint{Version: 1, Claims: map[types.UID]*preparedClaim{}}
	data, err := os.ReadFile(d.checkpointPath())
	if errors.Is(err, os.ErrNotExist) {
		d.inMemory = state
		return state, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, state); err != nil {
		return nil, fmt.Errorf("%s: %w", d.checkpointPath(), err)
	}
	if state.Checksum != state.sum() {
		return nil, fmt.Errorf("%s: wrong checksum", d.checkpointPath())
	}
	if state.Claims == nil {
		state.Claims = map[types.UID]*preparedClaim{}
	}
	d.inMemory = state
	return state, nil
}

func (d *driver) save(state *checkpoint) error {
	state.Checksum = state.sum()
	data, err := json.MarshalIndent(state, "", " ")
	if err != nil {
		return err
	}
	if faulty("torn-checkpoint") { // in place, and the disk is slow
		file, err := os.Create(d.checkpointPath())
		if err != nil {
			return err
		}
		defer file.Close()
		if _, err := file.Write(data[:len(data)/2]); err != nil {
			return err
		}
		time.Sleep(400 * time.Millisecond)
		_, err = file.Write(data[len(data)/2:])
		return err
	}
	return writeAtomically(d.checkpointPath(), data, 0o600)
}

func writeAtomically(path string, data []byte, mode os.FileMode) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".tmp-*") // a name that container runtimes ignore
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	if _, err = file.Write(data); err == nil {
		if err = file.Chmod(mode); err == nil {
			err = file.Sync()
		}
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// recover brings the files in line with the checkpoint: after a crash, or a reboot that emptied the CDI directory.
func (d *driver) recover() error {
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	state, err := d.load()
	if err != nil && !faulty("torn-checkpoint") {
		log.Printf("the checkpoint is lost: %v", err)
		_ = os.Rename(d.checkpointPath(), d.checkpointPath()+".lost")
		if state, err = d.rebuild(); err == nil {
			err = d.save(state)
		}
	}
	if err != nil {
		return err
	}
	if faulty("reboot-no-cdi") {
		return nil
	}
	if variant == "cdi-static-yaml" {
		return d.writeStaticCDI()
	}
	for uid, claim := range state.Claims {
		if err := d.writeFiles(uid, claim); err != nil {
			return err
		}
	}
	if faulty("cdi-file-by-claim-name") {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(d.cdi, cdiPrefix+"*.json"))
	for _, path := range files {
		uid := types.UID(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), cdiPrefix), ".json"))
		if faulty("cdi-temp-left") && strings.Contains(string(uid), ".") {
			continue
		}
		if state.Claims[uid] == nil {
			log.Printf("removing %s, whose claim is not prepared", path)
			_ = os.Remove(path)
		}
	}
	dirs, _ := filepath.Glob(filepath.Join(d.data, "claims", "*"))
	for _, path := range dirs {
		if state.Claims[types.UID(filepath.Base(path))] == nil {
			_ = os.RemoveAll(path)
		}
	}
	return nil
}

// rebuild creates a checkpoint from the claims to which devices of this node are allocated.
func (d *driver) rebuild() (*checkpoint, error) {
	state := &checkpoint{Version: 1, Claims: map[types.UID]*preparedClaim{}}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	list, err := d.client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		claim := &list.Items[i]
		if claim.Status.Allocation == nil {
			continue
		}
		entry := &preparedClaim{Namespace: claim.Namespace, Name: claim.Name, Rebuilt: true}
		for _, result := range claim.Status.Allocation.Devices.Results {
			d.mu.Lock()
			_, known := d.find(result.Device, result.Pool)
			d.mu.Unlock()
			if result.Driver == driverName && known {
				mode, _ := modeFor(claim, result.Request)
				entry.Devices = append(entry.Devices, newPrepared(claim.UID, len(entry.Devices), result, mode))
			}
		}
		if len(entry.Devices) > 0 {
			state.Claims[claim.UID] = entry
		}
	}
	d.inMemory = state
	return state, nil
}

// current returns whether a rebuilt entry still belongs to an allocated claim.
func (d *driver) current(ctx context.Context, uid types.UID, entry *preparedClaim) bool {
	claim, err := d.client.ResourceV1().ResourceClaims(entry.Namespace).Get(ctx, entry.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false
	}
	return err != nil || claim.UID == uid && claim.Status.Allocation != nil
}

func newPrepared(uid types.UID, index int, result resourceapi.DeviceRequestAllocationResult, mode string) prepared {
	device := prepared{Request: result.Request, Pool: result.Pool, Device: result.Device, ShareID: result.ShareID,
		Admin: result.AdminAccess != nil && *result.AdminAccess, Mode: mode}
	device.CDI = cdiKind + "=" + cdiName(uid, index, device)
	if variant == "cdi-static-yaml" {
		device.CDI = cdiKind + "=" + result.Device
	}
	return device
}

// cleanNode removes everything that the driver created (shutdown-cleans).
func (d *driver) cleanNode() {
	files, _ := filepath.Glob(filepath.Join(d.cdi, cdiPrefix+"*.json"))
	for _, path := range files {
		_ = os.Remove(path)
	}
	_ = os.RemoveAll(filepath.Join(d.data, "claims"))
	_ = os.Remove(d.checkpointPath())
}

func (d *driver) claimDir(uid types.UID) string { return filepath.Join(d.data, "claims", string(uid)) }

func (d *driver) cdiPath(uid types.UID, claim *preparedClaim) string {
	if faulty("cdi-file-by-claim-name") && claim != nil {
		return filepath.Join(d.cdi, cdiPrefix+claim.Name+".json")
	}
	return filepath.Join(d.cdi, cdiPrefix+string(uid)+".json")
}

type cdiNode struct {
	Path        string `json:"path"`
	HostPath    string `json:"hostPath,omitempty"`
	Permissions string `json:"permissions,omitempty"`
}
type cdiMount struct {
	HostPath      string   `json:"hostPath"`
	ContainerPath string   `json:"containerPath"`
	Options       []string `json:"options,omitempty"`
}
type cdiEdits struct {
	Env    []string   `json:"env,omitempty"`
	Nodes  []cdiNode  `json:"deviceNodes,omitempty"`
	Mounts []cdiMount `json:"mounts,omitempty"`
}
type cdiDevice struct {
	Name  string   `json:"name"`
	Edits cdiEdits `json:"containerEdits"`
}
type cdiSpec struct {
	Version string      `json:"cdiVersion"`
	Kind    string      `json:"kind"`
	Devices []cdiDevice `json:"devices"`
	Edits   *cdiEdits   `json:"containerEdits,omitempty"`
}

// writeFiles writes what the containers of a claim need. It may be called again.
func (d *driver) writeFiles(uid types.UID, claim *preparedClaim) error {
	if variant == "cdi-static-yaml" {
		return d.writeStaticCDI()
	}
	if err := os.MkdirAll(d.claimDir(uid), 0o755); err != nil {
		return err
	}
	if len(claim.Devices) == 0 {
		return nil
	}
	spec := cdiSpec{Version: "0.6.0", Kind: cdiKind, Edits: &cdiEdits{Mounts: []cdiMount{{HostPath: d.claimDir(uid),
		ContainerPath: "/run/chip/" + string(uid), Options: []string{"rw", "bind"}}}}}
	if faulty("cdi-version-too-low") {
		spec.Version = "0.3.0" // hostPath, and names that begin with a digit, need 0.5.0
	}
	for i, device := range claim.Devices {
		short := strings.ReplaceAll(string(uid), "-", "")
		edits := cdiEdits{
			Env:   []string{fmt.Sprintf("CHIP_%s_%d=%s", short, i, device.Device)},
			Nodes: []cdiNode{{Path: "/dev/" + device.Device, HostPath: d.nodePath(device.Device), Permissions: "rw"}},
		}
		if device.Mode != "" {
			edits.Env = append(edits.Env, fmt.Sprintf("CHIP_%s_%d_MODE=%s", short, i, device.Mode))
		}
		spec.Devices = append(spec.Devices, cdiDevice{Name: cdiName(uid, i, device), Edits: edits})
	}
	data, err := json.MarshalIndent(spec, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.cdi, 0o755); err != nil {
		return err
	}
	path := d.cdiPath(uid, claim)
	if faulty("cdi-temp-left") {
		temporary, err := os.CreateTemp(d.cdi, cdiPrefix+string(uid)+".*.json")
		if err != nil {
			return err
		}
		if _, err := temporary.Write(data); err != nil {
			return err
		}
		_ = temporary.Close()
		copied, err := os.ReadFile(temporary.Name()) // "rename fails between file systems, so copy"
		if err != nil {
			return err
		}
		return os.WriteFile(path, copied, 0o644)
	}
	return writeAtomically(path, data, 0o644)
}

func cdiName(uid types.UID, i int, device prepared) string {
	return fmt.Sprintf("%s-%d-%s", uid, i, device.Device)
}

// writeStaticCDI writes one file for all devices, in YAML.
func (d *driver) writeStaticCDI() error {
	text := "cdiVersion: \"0.6.0\"\nkind: " + cdiKind + "\ndevices:\n"
	for index := range chips {
		for _, name := range namesOf(index) {
			text += fmt.Sprintf("- name: %s\n  containerEdits:\n    env:\n    - %s=%s\n    deviceNodes:\n    - path: /dev/%s\n      hostPath: %s\n",
				name, strings.ToUpper(strings.ReplaceAll(name, "-", "_")), name, name, d.nodePath(name))
		}
	}
	path := filepath.Join(d.cdi, staticCDI)
	if old, err := os.ReadFile(path); err == nil && string(old) == text {
		return nil
	}
	if err := os.MkdirAll(d.cdi, 0o755); err != nil {
		return err
	}
	return writeAtomically(path, []byte(text), 0o644)
}

func (d *driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(ctx, claim)
		if err != nil {
			log.Printf("preparing %s: %v", claim.Name, err)
		}
		if err != nil && faulty("failure-as-success") {
			results[claim.UID] = kubeletplugin.PrepareResult{}
			continue
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
		if faulty("omits-second-claim") {
			break
		}
	}
	return results, nil
}

// The driver's parameters in a claim or class.
type parameters struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Mode       string `json:"mode"`
}

// modeFor returns the mode for a request; the claim takes precedence over the class.
func modeFor(claim *resourceapi.ResourceClaim, request string) (string, error) {
	mode := ""
	main, _, _ := strings.Cut(request, "/")
	for _, source := range []resourceapi.AllocationConfigSource{resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim} {
		for _, config := range claim.Status.Allocation.Devices.Config {
			if config.Source != source || config.Opaque == nil || config.Opaque.Driver != driverName {
				continue
			}
			if len(config.Requests) > 0 && !contains(config.Requests, request) && !contains(config.Requests, main) {
				continue
			}
			var p parameters
			if err := json.Unmarshal(config.Opaque.Parameters.Raw, &p); err != nil {
				return "", fmt.Errorf("parameters: %w", err)
			}
			if p.Kind != "ChipConfig" || p.APIVersion != driverName+"/v1" {
				return "", fmt.Errorf("parameters: unknown kind %s %s", p.APIVersion, p.Kind)
			}
			if p.Mode != "fast" && p.Mode != "exact" {
				return "", fmt.Errorf("parameters: unknown mode %q", p.Mode)
			}
			mode = p.Mode
		}
	}
	return mode, nil
}

func (d *driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	if variant == "slow" {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(3 * time.Second):
		}
	}
	state, err := d.load()
	if err != nil {
		return nil, err
	}
	if known := state.Claims[claim.UID]; known != nil && (!faulty("not-idempotent-after-restart") || d.mine[claim.UID]) {
		if !faulty("reboot-no-cdi") {
			if err := d.writeFiles(claim.UID, known); err != nil {
				return nil, err
			}
		}
		return d.answer(known), nil
	}

	holders := map[string]types.UID{} // unit -> claim
	for uid, other := range state.Claims {
		if other.Rebuilt && overlaps(other, claim) && !d.current(ctx, uid, other) {
			_ = d.removeFiles(uid, other)
			delete(state.Claims, uid)
			continue
		}
		for _, device := range other.Devices {
			if !device.Admin && device.ShareID == nil {
				for _, unit := range unitsOf(device.Device) {
					holders[unit] = uid
				}
			}
		}
	}
	if faulty("partial-prepare-leak") {
		for unit, uid := range d.reserved {
			holders[unit] = uid
		}
	}
	entry := &preparedClaim{Namespace: claim.Namespace, Name: claim.Name}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != driverName && !faulty("foreign-results") {
			continue
		}
		d.mu.Lock()
		_, present := d.find(result.Device, result.Pool)
		d.mu.Unlock()
		if !present {
			return nil, fmt.Errorf("no device %s in pool %s", result.Device, result.Pool)
		}
		mode, err := modeFor(claim, result.Request)
		if err != nil {
			return nil, err
		}
		device := newPrepared(claim.UID, len(entry.Devices), result, mode)
		if !device.Admin && device.ShareID == nil && !faulty("accepts-device-in-use") {
			for _, unit := range unitsOf(result.Device) {
				holder, used := holders[unit]
				if used && (holder != claim.UID || faulty("not-idempotent-after-restart")) {
					return nil, fmt.Errorf("device %s is in use by claim %s", result.Device, holder)
				}
			}
			if faulty("partial-prepare-leak") {
				for _, unit := range unitsOf(result.Device) {
					d.reserved[unit] = claim.UID
				}
				if err := os.MkdirAll(d.claimDir(claim.UID), 0o755); err != nil {
					return nil, err
				}
			}
		}
		if faulty("slow-many") {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(12 * time.Second):
			}
		}
		entry.Devices = append(entry.Devices, device)
	}

	if faulty("unserialized-lost-update") {
		time.Sleep(100 * time.Millisecond) // the device takes its time
	}
	if err := d.writeFiles(claim.UID, entry); err != nil {
		d.removeFiles(claim.UID, entry)
		return nil, err
	}
	state.Claims[claim.UID] = entry
	if err := d.save(state); err != nil {
		delete(state.Claims, claim.UID)
		d.removeFiles(claim.UID, entry)
		return nil, err
	}
	d.mu.Lock()
	d.mine[claim.UID] = true
	d.mu.Unlock()
	return d.answer(entry), nil
}

// answer is what the kubelet is told about a prepared claim.
func (d *driver) answer(claim *preparedClaim) []kubeletplugin.Device {
	devices := []kubeletplugin.Device{}
	for i, device := range claim.Devices {
		if faulty("caps-at-four-devices") && i == 4 {
			break
		}
		of := device
		if faulty("metadata-wrong-device") {
			of = claim.Devices[0]
		}
		answer := kubeletplugin.Device{Requests: []string{device.Request}, PoolName: device.Pool, DeviceName: device.Device,
			ShareID: device.ShareID, CDIDeviceIDs: []string{device.CDI}}
		if faulty("first-request-for-all") {
			answer.Requests = []string{claim.Devices[0].Request}
		}
		if faulty("share-id-missing") {
			answer.ShareID = nil
		}
		d.mu.Lock()
		c, _ := d.find(of.Device, of.Pool)
		d.mu.Unlock()
		if c != nil {
			metadata := &kubeletplugin.DeviceMetadata{Attributes: map[string]resourceapi.DeviceAttribute{}}
			for name, value := range attributesOf(c, of.Device) {
				metadata.Attributes[string(name)] = value
			}
			answer.Metadata = metadata
		}
		devices = append(devices, answer)
	}
	return devices
}

func (d *driver) removeFiles(uid types.UID, claim *preparedClaim) error {
	if variant == "cdi-static-yaml" {
		return nil
	}
	if err := os.Remove(d.cdiPath(uid, claim)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(d.claimDir(uid))
}

func (d *driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = d.unprepare(ctx, claim)
		if results[claim.UID] != nil {
			log.Printf("unpreparing %s: %v", claim, results[claim.UID])
		}
	}
	return results, nil
}

func (d *driver) unprepare(ctx context.Context, claim kubeletplugin.NamespacedObject) error {
	if variant == "slow" {
		time.Sleep(time.Second)
	}
	if faulty("unprepare-needs-claim") {
		object, err := d.client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if object.UID != claim.UID || object.Status.Allocation == nil {
			return fmt.Errorf("claim %s is not allocated", claim)
		}
	}
	state, err := d.load()
	if err != nil {
		return err
	}
	known := state.Claims[claim.UID]
	if known == nil {
		if faulty("rolling-update-cache") || faulty("unserialized-lost-update") || faulty("partial-prepare-leak") {
			return nil
		}
		return d.removeFiles(claim.UID, &preparedClaim{Namespace: claim.Namespace, Name: claim.Name})
	}
	if faulty("device-gone-unprepare") {
		for _, device := range known.Devices {
			d.mu.Lock()
			_, present := d.find(device.Device, device.Pool)
			d.mu.Unlock()
			if !present {
				return fmt.Errorf("resetting the device: no device %s", device.Device)
			}
		}
	}
	if faulty("unserialized-lost-update") {
		time.Sleep(100 * time.Millisecond)
	}
	if faulty("share-unprepare-kills-other") {
		for uid, other := range state.Claims { // "the device is released"
			for _, device := range other.Devices {
				if uid != claim.UID && device.ShareID != nil && holds(known, device.Device) {
					_ = d.removeFiles(uid, other)
					delete(state.Claims, uid)
					break
				}
			}
		}
	}
	if err := d.removeFiles(claim.UID, known); err != nil {
		return err
	}
	delete(state.Claims, claim.UID)
	for unit, uid := range d.reserved {
		if uid == claim.UID {
			delete(d.reserved, unit)
		}
	}
	return d.save(state)
}

func holds(claim *preparedClaim, device string) bool {
	for _, held := range claim.Devices {
		if held.Device == device {
			return true
		}
	}
	return false
}

// overlaps returns whether a claim was allocated something that another claim holds.
func overlaps(held *preparedClaim, claim *resourceapi.ResourceClaim) bool {
	for _, device := range held.Devices {
		for _, unit := range unitsOf(device.Device) {
			for _, result := range claim.Status.Allocation.Devices.Results {
				if result.Driver == driverName && contains(unitsOf(result.Device), unit) {
					return true
				}
			}
		}
	}
	return false
}
