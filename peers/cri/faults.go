package main

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// faults are files with which a test makes the runtime fail:
//
//	runtime-not-ready, network-not-ready   a condition of the runtime is false; the text is its message
//	refuse/METHOD                          the method of that name fails; the text is the message
//	exit/NAMESPACE_POD_CONTAINER           the container ends; the text is its exit code. The file is removed
type faults struct{ directory string }

// text returns the content of a file, and whether the file exists.
func (f faults) text(name string) (string, bool) {
	content, err := os.ReadFile(filepath.Join(f.directory, name))
	return strings.TrimSpace(string(content)), err == nil
}

func (f faults) intercept(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	if message, refused := f.text(filepath.Join("refuse", path.Base(info.FullMethod))); refused {
		return nil, status.Error(codes.Unknown, message)
	}
	return handler(ctx, request)
}

// condition returns a condition of the runtime, which is false while its file exists.
func (f faults) condition(name, file, reason string) *runtimeapi.RuntimeCondition {
	message, failed := f.text(file)
	if !failed {
		return &runtimeapi.RuntimeCondition{Type: name, Status: true}
	}
	return &runtimeapi.RuntimeCondition{Type: name, Reason: reason, Message: message}
}

// exitCode returns the code with which a test ends a container, once.
func (f faults) exitCode(namespace, pod, container string) (int32, bool) {
	name := filepath.Join("exit", strings.Join([]string{namespace, pod, container}, "_"))
	text, found := f.text(name)
	code, err := strconv.ParseInt(text, 10, 32)
	if !found || err != nil {
		return 0, false
	}
	return int32(code), os.Remove(filepath.Join(f.directory, name)) == nil
}
