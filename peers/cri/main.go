// Cri is a container runtime that runs nothing, for a real kubelet on a machine without containers.
//
// Law: a pod runs until the kubelet stops it, unless the pod says otherwise, and whatever a container was given is in
// the file containers.jsonl.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	socket := flag.String("socket", "", "the socket to listen on")
	state := flag.String("state", "", "the directory of containers.jsonl, and of the files that make the runtime fail")
	flag.Parse()
	if *socket == "" || *state == "" {
		log.Fatal("cri: expected --socket FILE and --state DIRECTORY")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *socket, *state); err != nil {
		log.Fatalf("cri: %v", err)
	}
}

// serve serves a kubelet until the context ends.
func serve(ctx context.Context, socket, state string) error {
	if err := os.MkdirAll(filepath.Join(state, "refuse"), 0o755); err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	faults := faults{directory: state}
	server := grpc.NewServer(grpc.UnaryInterceptor(faults.intercept))
	runtimeapi.RegisterRuntimeServiceServer(server, newRuntime(state, faults))
	runtimeapi.RegisterImageServiceServer(server, newImages(state))
	context.AfterFunc(ctx, server.Stop)
	return server.Serve(listener)
}
