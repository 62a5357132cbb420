package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// images are those that were pulled: every image exists, and each is one byte large.
type images struct {
	runtimeapi.UnimplementedImageServiceServer
	directory string
	lock      sync.Mutex
	pulled    map[string]*runtimeapi.Image
}

func newImages(directory string) *images {
	return &images{directory: directory, pulled: map[string]*runtimeapi.Image{}}
}

// imageID returns the id of an image, which depends only on its name.
func imageID(name string) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(name)))
}

func (i *images) ListImages(
	_ context.Context, request *runtimeapi.ListImagesRequest,
) (*runtimeapi.ListImagesResponse, error) {
	i.lock.Lock()
	defer i.lock.Unlock()
	found := slices.SortedFunc(maps.Values(i.pulled), func(a, b *runtimeapi.Image) int {
		return slices.Compare(a.RepoTags, b.RepoTags)
	})
	found = slices.Compact(found) // each is listed by its name and by its id
	if wanted := request.GetFilter().GetImage().GetImage(); wanted != "" {
		found = slices.DeleteFunc(found, func(one *runtimeapi.Image) bool {
			return one.Id != wanted && !slices.Contains(one.RepoTags, wanted)
		})
	}
	return &runtimeapi.ListImagesResponse{Images: found}, nil
}

func (i *images) ImageStatus(
	_ context.Context, request *runtimeapi.ImageStatusRequest,
) (*runtimeapi.ImageStatusResponse, error) {
	i.lock.Lock()
	defer i.lock.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: i.pulled[request.GetImage().GetImage()]}, nil
}

func (i *images) PullImage(
	_ context.Context, request *runtimeapi.PullImageRequest,
) (*runtimeapi.PullImageResponse, error) {
	i.lock.Lock()
	defer i.lock.Unlock()
	name := request.GetImage().GetImage()
	// A runtime is not told which container an image is for, so each is named after its container.
	container, _, _ := strings.Cut(path.Base(name), ":")
	if behaviors(request.GetSandboxConfig().GetAnnotations()[saysWhat], container).hasNoImage {
		return nil, status.Errorf(codes.Unknown, "no image: the annotation %s says so", saysWhat)
	}
	id := imageID(name)
	image := &runtimeapi.Image{Id: id, RepoTags: []string{name}, Size: 1, Spec: request.GetImage()}
	i.pulled[name], i.pulled[id] = image, image
	return &runtimeapi.PullImageResponse{ImageRef: id}, nil
}

func (i *images) RemoveImage(
	_ context.Context, request *runtimeapi.RemoveImageRequest,
) (*runtimeapi.RemoveImageResponse, error) {
	i.lock.Lock()
	defer i.lock.Unlock()
	if image, ok := i.pulled[request.GetImage().GetImage()]; ok {
		delete(i.pulled, image.Id)
		for _, name := range image.RepoTags {
			delete(i.pulled, name)
		}
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

func (i *images) ImageFsInfo(
	context.Context, *runtimeapi.ImageFsInfoRequest,
) (*runtimeapi.ImageFsInfoResponse, error) {
	usage := []*runtimeapi.FilesystemUsage{{
		Timestamp:  time.Now().UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: i.directory},
		UsedBytes:  &runtimeapi.UInt64Value{},
		InodesUsed: &runtimeapi.UInt64Value{},
	}}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage, ContainerFilesystems: usage}, nil
}
