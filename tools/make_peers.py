"""Build the programs of `peers/` for one version of Kubernetes, into a cache outside the tree: `make peers`.

The cache is `${XDG_CACHE_HOME:-~/.cache}/devicecore-peers/<version>/`: the module file of that version, and `bin/`.
`peers/go.mod` is for the version that devicecore follows; the module file for any other version is derived from
Kubernetes' own `go.mod` of that version. Files below `peers/_inside/` become part of Kubernetes' packages (`go build
-overlay`), so that our programs can call functions that those packages do not export. The files that
`peers/in_order.toml` names are changed to iterate over maps in key order.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PEERS = ROOT / "peers"
INSIDE = PEERS / "_inside"
IN_ORDER = PEERS / "in_order.toml"
KUBERNETES = "k8s.io/kubernetes"
OURS = ("oracle", "cri")  # the programs whose source is in `peers/`
SUBJECTS = ("subject-driver", "subject-plugin")
"""Programs in `peers/subjects/`, a separate module.

They are built only if the command line names them or `subjects`.
"""
DESCRIBED = "described-kubelet"
"""Kubernetes' kubelet with `peers/_described/`: it reads its machine's description from the file $DESCRIBED_MACHINE."""
FOLDERS = {**dict.fromkeys(SUBJECTS, "subjects"), DESCRIBED: "_described"}
"""The folders in `peers/` whose sources belong to these programs alone."""
_APART = {*FOLDERS.values(), "_tables"}
TOOLS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    **{
        name: f"{KUBERNETES}/cmd/{name}"
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
    },
}
ENVIRONMENT = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": os.environ.get("GOFLAGS", "")}
ENVIRONMENT["GOTOOLCHAIN"] = "auto"  # even downloading the sources of a release may require a newer Go


class PeersError(Exception):
    """A program cannot be built."""

    status = 1


class NoGoError(PeersError):
    """Go is not installed."""

    status = 3


class RefusedError(PeersError):
    """A module, or the Go version that a release of Kubernetes needs, cannot be downloaded."""

    status = 4


REFUSED = re.compile(
    r"dial tcp|proxyconnect|i/o timeout|no such host|reading https?://|unrecognized import path|toolchain not available"
    r"|lookup disabled|[Cc]onnection (refused|reset)|\b(403 Forbidden|404 Not Found|410 Gone|50[0-9] [A-Z])"
)
"""Go's messages about a module that it cannot download. Any other failure is a fault in the sources."""


def default_version() -> str:
    """Return the version of Kubernetes in `peers/go.mod`."""
    found = re.search(rf"^\t{KUBERNETES} v(\S+)", (PEERS / "go.mod").read_text("utf-8"), re.MULTILINE)
    if not found:
        raise PeersError(f"peers/go.mod does not name the version of {KUBERNETES}")
    return found[1]


def cache_of(version: str) -> Path:
    """Return the directory with the programs built for a version of Kubernetes."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "devicecore-peers" / version


TREE = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
"""A suffix for the names of this clone's programs, because other clones share the cache."""


def program(name: str, version: str | None = None) -> Path:
    """Return the path at which `build` puts a program of `peers/`."""
    return cache_of(version or default_version()) / "bin" / (f"{name}-{TREE}" if name in (*OURS, *SUBJECTS) else name)


def stamp_of(name: str, version: str) -> Path:
    """Return the file that records which sources a program was built from.

    The file is written last, so it is missing after an interrupted build.
    """
    path = program(name, version)
    return path.with_name(f".{path.name}.made")


def sources_hash(name: str = "oracle") -> str:
    """Return a hash of the sources of one of our programs in `peers/`.

    The hash does not cover the modules that `go.mod` names.
    """
    files = [path for path in sorted(PEERS.rglob("*")) if path.suffix in (".go", ".mod", ".sum", ".toml")]
    folder = FOLDERS.get(name)
    if folder:
        files = [path for path in files if path.is_relative_to(PEERS / folder)]
    else:
        files = [path for path in files if path.relative_to(PEERS).parts[0] not in _APART]
    texts = (f"{path.relative_to(PEERS)}\0".encode() + path.read_bytes() for path in files)
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def problem_of(name: str, version: str) -> str:
    """Return why a program cannot be used (not built, or built from different sources), or an empty string.

    The cache keeps built programs, so a program in it may be older than the sources in `peers/`.
    """
    path, stamp = program(name, version), stamp_of(name, version)
    if not path.is_file():
        return f"{path} has not been built"
    if not stamp.is_file():
        return f"{path} is incomplete: its build was interrupted, or a tree of a different version built it"
    if name in (*OURS, *FOLDERS) and stamp.read_text("utf-8") != sources_hash(name):
        return f"{path} is older than {PEERS.name}/"
    return ""


def go(*arguments: str) -> str:
    """Run the go command in `peers/` and return its output.

    A PeersError contains the first lines of the error output.
    """
    return run_go(*arguments).stdout


def run_go(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the go command in `peers/`. A PeersError contains the first lines of the error output."""
    if not shutil.which("go"):
        raise NoGoError("Go is not installed: install Go 1.26 or newer from https://go.dev/dl/, and put it on PATH")
    run = subprocess.run(
        ["go", *arguments],
        cwd=PEERS,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        lines = [line for line in (run.stderr + run.stdout).splitlines() if not line.startswith("go: downloading")]
        kind = RefusedError if any(map(REFUSED.search, lines)) else PeersError
        raise kind("\n".join([f"go {arguments[0]} failed:", *lines[:20]]))
    return run


def refused_in(text: str) -> list[str]:
    """Return the modules that Go could not download, each listed once, with the reason."""
    found = re.findall(rf"(\S+@v\S+: .*(?:{REFUSED.pattern}).*)", text)
    return sorted({one[0] for one in found})


def use_go_of(sources: Path) -> None:
    """Use the Go toolchain (a module) that these Kubernetes sources need, if the installed Go is older.

    Go itself would choose its toolchain by the module file in `peers/`, not by the one given with `-modfile`.
    """
    wanted = re.search(r"^go (\S+)", (sources / "go.mod").read_text("utf-8"), re.MULTILINE)
    installed = re.search(r"go(\d\S*)", go("version"))
    if wanted and installed and _numbers(installed[1]) < _numbers(wanted[1]):
        ENVIRONMENT["GOTOOLCHAIN"] = f"go{wanted[1]}"
        go("version")  # if the download fails here, the error is readable


def _numbers(version: str) -> list[int]:
    """Return the numbers in a Go version, so that versions can be compared."""
    return [int(number) for number in re.findall(r"\d+", version)]


def write(path: Path, text: str) -> None:
    """Write a file unless it already has this text, so that programs built from it stay up to date."""
    if not path.is_file() or path.read_text("utf-8") != text:
        path.write_text(text, encoding="utf-8")


def sources_of(version: str) -> Path:
    """Return the directory with Kubernetes' sources, which are downloaded if Go's module cache lacks them."""
    module = f"{KUBERNETES}@v{version}"
    go("mod", "download", module)  # if the download fails here, the error is readable
    return Path(json.loads(go("mod", "download", "-json", module))["Dir"])


def derived(version: str, sources: Path) -> str:
    """Return a module file like `peers/go.mod` for a different Kubernetes version and its matching modules.

    Kubernetes publishes the modules below `staging/` of 1.N.P as 0.N.P.
    """
    module = re.search(r"^module (\S+)", (PEERS / "go.mod").read_text("utf-8"), re.MULTILINE)
    theirs = (sources / "go.mod").read_text("utf-8")
    language = re.search(r"^go .*", theirs, re.MULTILINE)
    if not module or not language:
        raise PeersError(f"the module file of {KUBERNETES} {version} has no line that starts with `go`")
    staging = re.findall(r"^\s*(\S+) => \./staging", theirs, re.MULTILINE)
    published = "v0." + version.partition(".")[2]
    return "\n".join(
        [
            f"module {module[1]}\n\n{language[0]}\n\nrequire {KUBERNETES} v{version}\n\nreplace (",
            *(f"\t{name} => {name} {published}" for name in staging),
            ")\n\ntool (",
            *(f"\t{path}" for path in sorted(TOOLS.values())),
            ")\n",
        ]
    )


def module_file(version: str, sources: Path) -> Path:
    """Return the module file for Kubernetes' own programs. Its `go.sum` is in the same directory."""
    path = cache_of(version) / "go.mod"
    path.parent.mkdir(parents=True, exist_ok=True)
    if version == default_version():
        for name in ("go.mod", "go.sum"):
            write(path.with_name(name), (PEERS / name).read_text("utf-8"))
        return path
    text = derived(version, sources)
    origin = path.with_name("derived.mod")  # a copy to compare with, because `go mod tidy` changes go.mod
    imported = sorted(
        {
            line
            for file in PEERS.rglob("*.go")
            if file.relative_to(PEERS).parts[0] not in _APART
            for line in re.findall(r'"([\w./-]+\.[\w./-]+)"', file.read_text("utf-8"))
        }
    )
    text += "".join(f"// {name}\n" for name in imported)
    if not path.is_file() or not origin.is_file() or origin.read_text("utf-8") != text:
        path.write_text(text, encoding="utf-8")
        shutil.copyfile(PEERS / "go.sum", path.with_name("go.sum"))
        tidied = run_go("mod", "tidy", "-e", f"-modfile={path}")  # -e: a package may not exist in this version
        path.with_name("refused").write_text("\n".join(refused_in(tidied.stderr)), encoding="utf-8")
        origin.write_text(text, encoding="utf-8")
    return path


def overlay(version: str, sources: Path, modules: Path, inside: Path = INSIDE) -> list[str]:
    """Return the go options that put the files below `inside` into Kubernetes' packages.

    Go does not replace files in its module cache, so Kubernetes is referenced through a symbolic link to its directory
    in that cache.
    """
    cache = cache_of(version)
    link = cache / "kubernetes"
    if not link.is_symlink() or link.readlink() != sources:
        link.unlink(missing_ok=True)
        link.symlink_to(sources)
    files = {str(link / file.relative_to(inside / KUBERNETES)): str(file) for file in sorted(inside.rglob("*.go"))}
    tree = cache / TREE
    tree.mkdir(exist_ok=True)
    changed = walking_in_order(sources, tree) if inside == INSIDE else replaced(sources, tree, inside)
    files |= {str(link / name): str(path) for name, path in changed}
    listed = tree / f"overlay{'' if inside == INSIDE else inside.name}.json"
    write(listed, json.dumps({"Replace": files}, indent=1))
    text = modules.read_text("utf-8") + f"\nreplace {KUBERNETES} => {link}\n"
    write(tree / "oracle.mod", text)
    write(tree / "oracle.sum", modules.with_suffix(".sum").read_text("utf-8"))
    minor = int(version.split(".")[1])
    # as with Go's own tags, a release's tag is also set for later releases
    tags = ",".join(f"kubernetes1.{one}" for one in range(30, minor + 1))
    return [f"-modfile={tree / 'oracle.mod'}", f"-overlay={listed}", f"-tags={tags}"]


def walking_in_order(sources: Path, tree: Path) -> Iterator[tuple[str, Path]]:
    """Write copies of Kubernetes' files, changed to iterate over maps in key order. Yield their names and paths."""
    for name, walked in tomllib.loads(IN_ORDER.read_text("utf-8")).items():
        text = (sources / name).read_text("utf-8")
        for one in walked:
            names = [one] if isinstance(one, str) else one  # a list contains the names of one map in different releases
            expression = next((each for each in names if f" range {each} {{" in text), "")
            if not expression:
                raise PeersError(f"{name} does not iterate over {' or '.join(names)}, which {IN_ORDER.name} names")
            text = text.replace(f" range {expression} {{", f" range inorder.Of({expression}) {{")
        path = tree / name.replace("/", "_")
        imported = f'\tinorder "{KUBERNETES}/pkg/kubelet/cm/containermap"\n'  # `go vet` needs an existing directory
        write(path, text.replace("\nimport (\n", f"\nimport (\n{imported}", 1))
        yield name, path


def replaced(sources: Path, tree: Path, inside: Path) -> Iterator[tuple[str, Path]]:
    """Write the Kubernetes files in which `replaced.toml` replaces text. Yield their names and paths."""
    for name, texts in tomllib.loads((inside / "replaced.toml").read_text("utf-8")).items():
        text = (sources / name).read_text("utf-8")
        for before, after in texts.items():
            if text.count(before) != 1:
                raise PeersError(f"expected {before!r} exactly once in {name}, found it {text.count(before)} times")
            text = text.replace(before, after)
        path = tree / f"{inside.name}_{name.replace('/', '_')}"
        write(path, text)
        yield name, path


def link_flags(version: str) -> str:
    """Return the linker flags with which Kubernetes' own build sets a program's version."""
    major, minor, _ = version.split(".", 2)
    values: Mapping[str, str] = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/client-go/pkg/version", "k8s.io/component-base/version")
    flags = [f"-X {package}.{name}={text}" for package in packages for name, text in values.items()]
    return " ".join(["-s -w", *flags])


def folder_of(subject: str) -> str:
    """Return the path of a subject's Go package within `peers/subjects/`."""
    return f"./{subject.removeprefix('subject-')}"


def build(version: str, names: Iterable[str]) -> None:
    """Build programs. Raises PeersError.

    Kubernetes' own programs are rebuilt only if their module file or Go has changed.
    """
    sources = sources_of(version)
    use_go_of(sources)
    modules = module_file(version, sources)
    target = cache_of(version) / "bin"
    target.mkdir(exist_ok=True)
    pinned = hashlib.sha256(
        "".join([modules.read_text("utf-8"), link_flags(version), go("version")]).encode()
    ).hexdigest()
    for name in names:
        path, stamp = program(name, version), stamp_of(name, version)
        if name in SUBJECTS:
            stamp.unlink(missing_ok=True)
            go("build", "-C", "subjects", "-ldflags=-s -w", "-o", str(path), folder_of(name))
            stamp.write_text(sources_hash(name), encoding="utf-8")
            continue
        if name in OURS:
            options, built_from = overlay(version, sources, modules), sources_hash()
            stamp.unlink(missing_ok=True)
            try:
                go("build", *options, "-o", str(path), f"./{name}")  # Go itself detects which sources have changed
            except PeersError as error:
                refused = modules.with_name("refused")
                if "missing go.sum entry" not in str(error) or not refused.is_file():
                    raise
                raise RefusedError("\n".join(["modules were refused:", refused.read_text("utf-8")])) from None
            stamp.write_text(built_from, encoding="utf-8")
            continue
        built_from = sources_hash(name) if name == DESCRIBED else pinned
        if path.is_file() and stamp.is_file() and stamp.read_text("utf-8") == built_from:
            continue
        print(f"== building {name} of Kubernetes {version}", flush=True)
        stamp.unlink(missing_ok=True)
        options, package = [f"-modfile={modules}"], TOOLS.get(name, TOOLS["kubelet"])
        if name == DESCRIBED:
            options = overlay(version, sources, modules, PEERS / FOLDERS[name])
        go("build", *options, f"-ldflags={link_flags(version)}", "-o", str(path), package)
        stamp.write_text(built_from, encoding="utf-8")


def check(version: str) -> None:
    """Run gofmt, go vet and go test on our own programs. Raises PeersError."""
    unformatted = subprocess.run(
        ["gofmt", "-l", str(PEERS)], capture_output=True, text=True, check=False, env=ENVIRONMENT
    ).stdout.split()
    if unformatted:
        raise PeersError("gofmt would change " + ", ".join(os.path.relpath(path, ROOT) for path in unformatted))
    sources = sources_of(version)
    use_go_of(sources)
    options = overlay(version, sources, module_file(version, sources))
    packages = [f"./{name}/..." for name in OURS]
    go("vet", *options, *packages)
    go("test", *options, *packages)
    go("vet", "-C", "subjects", "./...")
    go("test", "-C", "subjects", "./...")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the programs that the command line names, or check our own programs. Return the exit status."""
    parser = argparse.ArgumentParser(prog="make_peers.py", description=__doc__.partition("\n")[0])
    every = ", ".join([*OURS, *TOOLS, DESCRIBED])
    parser.add_argument("names", nargs="*", help=f"programs to build ({every}), or `subjects`")
    parser.add_argument(
        "--kubernetes",
        default=default_version(),
        metavar="VERSION",
        help="version of Kubernetes (default: %(default)s)",
    )
    parser.add_argument(
        "--check", action="store_true", help="run gofmt, go vet and go test on our own programs instead of building"
    )
    options = parser.parse_args(arguments)
    names = [one for name in options.names for one in (SUBJECTS if name == "subjects" else [name])]
    if unknown := set(names) - {*OURS, *FOLDERS, *TOOLS}:
        parser.error(f"unknown program: {', '.join(sorted(unknown))}")
    try:
        if options.check:
            check(options.kubernetes)
        else:
            build(options.kubernetes, names or [*OURS, *TOOLS, DESCRIBED])
            print(f"== the programs are in {cache_of(options.kubernetes) / 'bin'}")
    except PeersError as error:
        print(f"make peers: {error}", file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
