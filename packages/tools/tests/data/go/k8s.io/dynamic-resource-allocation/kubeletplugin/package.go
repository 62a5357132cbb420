package kubeletplugin
import (
	"context"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)
type DRAPlugin interface{}
type Option func()
type Helper struct{}
func (*Helper) Stop() {}
func Start(ctx context.Context, plugin DRAPlugin, opts ...Option) (*Helper, error) { return nil, nil }
func DriverName(name string) Option { return nil }
func NodeName(name string) Option { return nil }
func KubeClient(client kubernetes.Interface) Option { return nil }
func RegistrarDirectoryPath(path string) Option { return nil }
func PluginDataDirectoryPath(path string) Option { return nil }
func RollingUpdate(uid types.UID) Option { return nil }
