package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// served is a runtime that listens on a socket, and its clients.
type served struct {
	runtimeapi.RuntimeServiceClient
	images runtimeapi.ImageServiceClient
	state  string
}

func serving(t *testing.T) served {
	t.Helper()
	state := t.TempDir()
	socket := filepath.Join(state, "s")
	done := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() { done <- serve(ctx, socket, state) }()
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		connection.Close()
		stop()
		if err := <-done; err != nil {
			t.Errorf("expected the runtime to end without an error, got %v", err)
		}
	})
	return served{runtimeapi.NewRuntimeServiceClient(connection), runtimeapi.NewImageServiceClient(connection), state}
}

func (s served) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(s.state, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// run starts a container of a pod with annotations, and returns the ids of its sandbox and of the container.
func (s served) run(t *testing.T, annotations map[string]string) (string, string) {
	t.Helper()
	ctx := t.Context()
	pod := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "train", Namespace: "default", Uid: "u1"},
		LogDirectory: s.state, Annotations: annotations, Labels: map[string]string{"app": "train"},
	}
	box, err := s.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
	if err != nil {
		t.Fatal(err)
	}
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "i"},
		Envs:       []*runtimeapi.KeyValue{{Key: "GPUS", Value: []byte("gpu-0")}},
		CDIDevices: []*runtimeapi.CDIDevice{{Name: "acme.io/gpu=gpu-0"}},
		Devices:    []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/dev/gpu0", Permissions: "rw"}},
		LogPath:    "main.log",
	}
	request := &runtimeapi.CreateContainerRequest{PodSandboxId: box.PodSandboxId, Config: config, SandboxConfig: pod}
	created, err := s.CreateContainer(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
		t.Fatal(err)
	}
	return box.PodSandboxId, created.ContainerId
}

func (s served) status(t *testing.T, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	answer, err := s.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status
}

func TestAContainerRunsUntilItIsStopped(t *testing.T) {
	s := serving(t)
	box, id := s.run(t, nil)
	if got := s.status(t, id); got.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("expected it to run, got %v", got.State)
	}
	if _, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30}); err != nil {
		t.Fatal(err)
	}
	if got := s.status(t, id); got.ExitCode != terminated || got.Reason != reasonError || got.FinishedAt < got.StartedAt {
		t.Errorf("expected it to end by SIGTERM, got %v", got)
	}
	if _, err := s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: box}); err != nil {
		t.Fatal(err)
	}
	left, err := s.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil || len(left.Containers) != 0 {
		t.Errorf("expected no container, got %v, %v", left, err)
	}
}

func TestAnAnnotationOfThePodEndsItsContainers(t *testing.T) {
	s := serving(t)
	_, id := s.run(t, map[string]string{runFor: "1ms"})
	time.Sleep(5 * time.Millisecond)
	got := s.status(t, id)
	if got.ExitCode != completed || got.Reason != reasonCompleted || got.FinishedAt-got.StartedAt != int64(time.Millisecond) {
		t.Errorf("expected it to end by itself after 1 ms, got %v", got)
	}
}

func TestAContainerThatDoesNotStopIsKilledAfterItsGracePeriod(t *testing.T) {
	s := serving(t)
	_, id := s.run(t, map[string]string{stopAfter: "1h"})
	if _, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if got := s.status(t, id); got.ExitCode != killed {
		t.Errorf("expected it to be killed, got %v", got)
	}
}

func TestATestEndsAContainerByAFileOnce(t *testing.T) {
	s := serving(t)
	_, id := s.run(t, nil)
	s.write(t, "exit/default_train_main", "3\n")
	if got := s.status(t, id); got.ExitCode != 3 || got.State != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Errorf("expected it to end with 3, got %v", got)
	}
	if _, err := os.Stat(filepath.Join(s.state, "exit/default_train_main")); !os.IsNotExist(err) {
		t.Errorf("expected the file to be removed, got %v", err)
	}
}

func TestFilesMakeTheRuntimeFail(t *testing.T) {
	s := serving(t)
	s.write(t, "network-not-ready", "no network plugin")
	answer, err := s.Status(t.Context(), &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first, second := answer.Status.Conditions[0], answer.Status.Conditions[1]
	if !first.Status || second.Status || second.Message != "no network plugin" {
		t.Errorf("expected only the network to fail, got %v", answer.Status.Conditions)
	}
	s.write(t, "refuse/PullImage", "no such registry")
	_, err = s.images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "i"}})
	if err == nil || !strings.Contains(err.Error(), "no such registry") {
		t.Errorf("expected the text of the file, got %v", err)
	}
}

func TestWhatAContainerWasGivenIsRecorded(t *testing.T) {
	s := serving(t)
	s.run(t, nil)
	content, err := os.ReadFile(filepath.Join(s.state, "containers.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	events := []string{}
	for line := range strings.Lines(string(content)) {
		var one record
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatal(err)
		}
		events = append(events, one.Event)
		if one.Event == "created" && (one.Env["GPUS"] != "gpu-0" || one.CDIDevices[0] != "acme.io/gpu=gpu-0" ||
			one.Devices[0].ContainerPath != "/dev/gpu0" || one.Container != "main" || one.UID != "u1") {
			t.Errorf("expected what the container was given, got %s", line)
		}
	}
	if got := strings.Join(events, " "); got != "sandbox created started" {
		t.Errorf("expected three events, got %s", got)
	}
}

func TestAnImageExistsOnceItIsPulled(t *testing.T) {
	s := serving(t)
	image := &runtimeapi.ImageSpec{Image: "i"}
	before, err := s.images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: image})
	if err != nil || before.Image != nil {
		t.Fatalf("expected no image, got %v, %v", before, err)
	}
	pulled, err := s.images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: image})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"i", pulled.ImageRef} { // the kubelet asks for either
		spec := &runtimeapi.ImageSpec{Image: name}
		after, err := s.images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: spec})
		if err != nil || after.Image == nil || after.Image.Id != pulled.ImageRef {
			t.Errorf("expected the image, got %v, %v", after, err)
		}
	}
	all, err := s.images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil || len(all.Images) != 1 {
		t.Errorf("expected one image, got %v, %v", all, err)
	}
}

func TestAnAnnotationSaysWhatAContainerWouldDo(t *testing.T) {
	s := serving(t)
	_, id := s.run(t, map[string]string{saysWhat: "main: oom after 1ms; other: exit 3"})
	time.Sleep(5 * time.Millisecond)
	if got := s.status(t, id); got.ExitCode != killed || got.Reason != reasonOOM {
		t.Errorf("expected it to be killed because of its memory, got %v", got)
	}
	text := "main: exit 3 after 1m30s; side: not-ready; start after 2s; side: no-image"
	for container, wanted := range map[string]behavior{
		"main":  {ends: true, code: 3, reason: reasonError, lasts: 90 * time.Second},
		"side":  {isUnready: true, hasNoImage: true},
		"other": {startsAfter: 2 * time.Second},
	} {
		if got := behaviors(text, container); got != wanted {
			t.Errorf("expected %v of %s, got %v", wanted, container, got)
		}
	}
}
