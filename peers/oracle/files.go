package main

import (
	"context"
	"encoding/json"
	"errors"

	"k8s.io/apimachinery/pkg/util/dump"
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
	File []byte `json:"file_b64"`
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

// decodeCheckpoint reads a file as a device manager does at its start.
func decodeCheckpoint(_ context.Context, question []byte) (any, error) {
	var asked checkpointQuestion
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
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
	entries, registered := data.GetData()
	answer["entries"], answer["resources"] = len(entries), len(registered)
	return answer, nil
}

// encodeClaims writes the state file of the DRA manager.
func encodeClaims(_ context.Context, question []byte) (any, error) {
	// Pods are a list in the question: a set has no null.
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

// decodeClaims reads a state file as a DRA manager does at its start.
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
