package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// asProgram makes the test program act as the driver itself.
const asProgram = "SUBJECT_OF_A_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestProcess runs the driver as a process, with an API server that knows nothing.
func TestProcess(t *testing.T) {
	for _, planted := range []string{"", "unserved-health", "shutdown-cleans"} {
		t.Run("fault="+planted, func(t *testing.T) {
			server := httptest.NewServer(http.NotFoundHandler())
			defer server.Close()
			dir, err := os.MkdirTemp("", "d")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			for _, name := range []string{"reg", "plugins", "cdi"} {
				_ = os.Mkdir(filepath.Join(dir, name), 0o755)
			}
			config := filepath.Join(dir, "kubeconfig")
			_ = os.WriteFile(config, []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: '"+server.URL+
				"'}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"), 0o600)
			// a claim that another process prepared
			fault = ""
			d := &driver{data: filepath.Join(dir, "plugins", driverName), cdi: filepath.Join(dir, "cdi")}
			_ = os.MkdirAll(d.data, 0o755)
			state, _ := d.load()
			state.Claims["a"] = &preparedClaim{Namespace: "default", Name: "a", Devices: []prepared{{Request: "r", Pool: "node", Device: "chip-0"}}}
			if err := d.save(state); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), asProgram+"=1", "FAULT="+planted, "KUBECONFIG="+config, "NODE_NAME=node", "KUBELET_REGISTRAR_DIRECTORY_PATH="+filepath.Join(dir, "reg"),
				"KUBELET_PLUGINS_DIRECTORY_PATH="+filepath.Join(dir, "plugins"), "CDI_ROOT="+filepath.Join(dir, "cdi"))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			var info *registerapi.PluginInfo
			for range 100 {
				time.Sleep(100 * time.Millisecond)
				c, _ := grpc.NewClient("unix:"+filepath.Join(dir, "reg", driverName+"-reg.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
				info, err = registerapi.NewRegistrationClient(c).GetInfo(context.Background(), &registerapi.InfoRequest{})
				_ = c.Close()
				if err == nil {
					break
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(strings.Join(info.SupportedVersions, " "), "v1.DRAResourceHealth") {
				t.Error(info.SupportedVersions)
			}
			c, _ := grpc.NewClient("unix:"+info.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
			stream, err := healthapi.NewDRAResourceHealthClient(c).NodeWatchResources(context.Background(), &healthapi.NodeWatchResourcesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			answer, err := stream.Recv()
			if planted == "unserved-health" {
				if status.Code(err) != codes.Unimplemented {
					t.Error(answer, err)
				}
			} else if err != nil || len(answer.Devices) != 10 {
				t.Error(answer, err)
			}
			if specs, _ := filepath.Glob(filepath.Join(dir, "cdi", "*")); len(specs) != 1 {
				t.Error("no CDI file after the start", specs)
			}
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			specs, _ := filepath.Glob(filepath.Join(dir, "cdi", "*"))
			if (len(specs) == 0) != (planted == "shutdown-cleans") {
				t.Error("after SIGTERM:", specs)
			}
			if sockets, _ := filepath.Glob(filepath.Join(dir, "reg", "*")); len(sockets) > 0 {
				t.Error("left:", sockets)
			}
		})
	}
}
