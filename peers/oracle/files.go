package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"k8s.io/apimachinery/pkg/util/dump"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager/checksum"
	checkpointerrors "k8s.io/kubernetes/pkg/kubelet/checkpointmanager/errors"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/checkpoint"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra/state"
)

type checkpointQuestion struct {
	Data struct {
		Entries []struct {
			PodUID, ContainerName, ResourceName string
			DeviceIDs                           checkpoint.DevicesPerNUMA
			AllocResp                           []byte
		}
		RegisteredDevices map[string][]string
	}
	File   []byte `json:"file_b64"`
	IsFlat bool   `json:"is_flat"` // a file from a kubelet before 1.20
}

// What kubelets from 1.20 to 1.29 read from an older kubelet's file: checkpoint.DataV1, which 1.30 removed.
type flatEntry struct {
	PodUID, ContainerName, ResourceName string
	DeviceIDs                           []string
	AllocResp                           []byte
}

type flatData struct {
	PodDeviceEntries  []flatEntry
	RegisteredDevices map[string][]string
}

type flatFile struct {
	Data     flatData
	Checksum checksum.Checksum
}

// encodeCheckpoint writes a checkpoint of the device manager.
func encodeCheckpoint(_ context.Context, question []byte) (any, error) {
	var asked checkpointQuestion
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	var entries []checkpoint.PodDevicesEntry
	if asked.Data.Entries != nil {
		entries = []checkpoint.PodDevicesEntry{}
	}
	for _, one := range asked.Data.Entries {
		entries = append(entries, checkpoint.PodDevicesEntry(one))
	}
	data := checkpoint.New(entries, asked.Data.RegisteredDevices).(*checkpoint.Data)
	file, err := data.MarshalCheckpoint()
	if err != nil {
		return nil, err
	}
	return map[string]any{"file_b64": file, "hashed": dump.ForHash(data.Data), "checksum": data.Checksum}, nil
}

// decodeCheckpoint reads a file as a device manager does when it starts.
func decodeCheckpoint(_ context.Context, question []byte) (any, error) {
	var asked checkpointQuestion
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	if asked.IsFlat {
		return decodeFlat(asked.File)
	}
	data := checkpoint.New([]checkpoint.PodDevicesEntry{}, map[string][]string{}).(*checkpoint.Data)
	if err := data.UnmarshalCheckpoint(asked.File); err != nil {
		return map[string]any{"verdict": "malformed"}, nil
	}
	answer := map[string]any{"verdict": "ok", "stored": data.Checksum, "computed": data.Checksum}
	var corrupt *checkpointerrors.CorruptCheckpointError
	if err := data.VerifyChecksum(); errors.As(err, &corrupt) {
		answer["verdict"], answer["computed"] = "checksum", corrupt.ActualCS
	}
	return withContent(answer, data)
}

// withContent adds the content of a file: its sizes, and the file that a kubelet would write from it.
func withContent(answer map[string]any, data *checkpoint.Data) (any, error) {
	entries, registered := data.GetData()
	again, err := data.MarshalCheckpoint()
	answer["entries"], answer["resources"], answer["again"] = len(entries), len(registered), json.RawMessage(again)
	return answer, err
}

// decodeFlat reads a file from a kubelet before 1.20, or a list of entries from a kubelet before 1.11.
func decodeFlat(text []byte) (any, error) {
	file := flatFile{Data: flatData{[]flatEntry{}, map[string][]string{}}}
	answer := map[string]any{"verdict": "ok", "stored": nil, "computed": nil}
	if err := json.Unmarshal(text, &file); err == nil {
		dumped := strings.NewReplacer("main.flatData", "checkpoint.checkpointData", "main.flatEntry", "checkpoint.PodDevicesEntry").Replace(dump.ForHash(file.Data))
		hash := fnv.New32a()
		fmt.Fprint(hash, dumped)
		answer["stored"], answer["computed"] = file.Checksum, hash.Sum32()
		if uint64(file.Checksum) != uint64(hash.Sum32()) {
			answer["verdict"] = "checksum"
		}
	} else if file = (flatFile{}); json.Unmarshal(text, &file.Data.PodDeviceEntries) != nil {
		return map[string]any{"verdict": "malformed"}, nil
	} else {
		file.Data.RegisteredDevices = map[string][]string{}
	}
	var entries []checkpoint.PodDevicesEntry
	if file.Data.PodDeviceEntries != nil {
		entries = []checkpoint.PodDevicesEntry{}
	}
	for _, one := range file.Data.PodDeviceEntries {
		var devices checkpoint.DevicesPerNUMA
		if one.DeviceIDs != nil { // those kubelets put all devices on NUMA node 0, even if there are none
			devices = checkpoint.DevicesPerNUMA{0: one.DeviceIDs}
		}
		entries = append(entries, checkpoint.PodDevicesEntry{PodUID: one.PodUID, ContainerName: one.ContainerName, ResourceName: one.ResourceName, DeviceIDs: devices, AllocResp: one.AllocResp})
	}
	return withContent(answer, checkpoint.New(entries, file.Data.RegisteredDevices).(*checkpoint.Data))
}

// encodeClaims writes the state file of the DRA manager.
func encodeClaims(_ context.Context, question []byte) (any, error) {
	// Pods are a list in the question, because a set cannot be null.
	var asked struct{ Claims []jsonClaim }
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	var claims state.ClaimInfoStateList
	if asked.Claims != nil {
		claims = state.ClaimInfoStateList{}
	}
	for _, one := range asked.Claims {
		claims = append(claims, one.state())
	}
	file, err := state.NewCheckpoint(claims)
	if err != nil {
		return nil, err
	}
	text, err := file.MarshalCheckpoint()
	return map[string]any{"bytes": text}, err
}

// decodeClaims reads a state file as a DRA manager does when it starts.
func decodeClaims(_ context.Context, question []byte) (any, error) {
	var asked struct{ Bytes []byte }
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	file, err := state.NewCheckpoint(nil)
	if err != nil {
		return nil, err
	}
	var corrupt *checkpointerrors.CorruptCheckpointError
	err = file.UnmarshalCheckpoint(asked.Bytes)
	if errors.As(err, &corrupt) {
		return map[string]any{"verdict": "checksum", "error": err.Error()}, nil
	}
	var claims state.ClaimInfoStateList
	if err == nil {
		claims, err = file.GetClaimInfoStateList()
	}
	if err != nil {
		return map[string]any{"verdict": "malformed", "error": err.Error()}, nil
	}
	return map[string]any{"verdict": "ok", "claims": jsonClaims(claims)}, nil
}
