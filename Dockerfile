# Images of devicecore: one target for each of its programs. Docker needs BuildKit (the default since 23.0).
#
#   docker build --target plugin --tag devicecore-plugin:local .       a simulated device plugin (docs/gpu-in-kind.md)
#   docker build --target driver --tag devicecore-driver:local .       a simulated DRA driver (docs/gpu-in-kind.md)
#   docker build --target fleet --tag devicecore-fleet .               nodes without machines (docs/run-a-cluster.md)
#   docker build --target doctor --tag devicecore-doctor .             reads a node (docs/read-a-node.md)
#   docker build --tag conformance .                                   the conformance checks for a binary (docs/ci.md)
#   docker build --target image --build-arg IMAGE=NAME --tag conformance .      the same for an image

ARG IMAGE=scratch
FROM ${IMAGE} AS subject

FROM python:3.12-slim AS wheel
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
COPY packages /source/packages
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source /source/packages/numa /source/packages/tools /source/packages/fleet

# The tools in an environment, which is all that the small images copy.
FROM wheel AS tools
RUN python -m venv --without-pip /opt/devicecore \
    && python -m pip --python /opt/devicecore/bin/python install --no-cache-dir --find-links /wheels "devicecore-tools[kubernetes]" devicecore-numa

FROM python:3.12-slim AS small
COPY --from=tools /opt/devicecore /opt/devicecore
ENV PATH=/opt/devicecore/bin:$PATH PYTHONDONTWRITEBYTECODE=1

# A kubelet's directories belong to root, so the plugin, the driver and the doctor run as root, but need no capabilities.
FROM small AS plugin
ENTRYPOINT ["devicecore", "plugin", "simulated"]

FROM small AS driver
ENTRYPOINT ["devicecore", "dra-driver", "simulated"]

FROM small AS doctor
ENTRYPOINT ["devicecore", "doctor"]

FROM python:3.12-slim AS base
COPY --from=wheel /wheels /wheels
RUN python -m pip install --no-cache-dir --find-links /wheels devicecore-tools
WORKDIR /workspace
ENTRYPOINT ["devicecore", "conformance"]

# Nodes in one process, which needs no rights on its machine, and those in docs/fleet/fleet.yaml on the API server.
FROM base AS fleet
RUN python -m pip install --no-cache-dir --find-links /wheels "devicecore-fleet[prometheus]" devicecore-numa \
    && mkdir -m 700 /run/fleet && chown 65534:65534 /run/fleet
USER 65534:65534
ENV DEVICECORE_FLEET=/run/fleet/fleet.sock
ENTRYPOINT ["devicecore", "fleet"]

# The files of the image under test are in /subject, and its command is `chroot /subject ...`. The directories that plugins and
# drivers share with a kubelet are the same inside and outside, so the paths are the same for both.
FROM base AS image
COPY --from=subject / /subject
RUN mkdir -p /subject/tmp /subject/run/cdi /subject/var/lib/kubelet /subject/etc \
    && chmod 1777 /subject/tmp \
    && if [ ! -L /subject/var/run ]; then mkdir -p /subject/var/run && ln -sfn ../../run/cdi /subject/var/run/cdi; fi \
    && rm -rf /tmp /run/cdi /var/lib/kubelet \
    && ln -s /subject/tmp /tmp \
    && ln -s /subject/run/cdi /run/cdi \
    && ln -s /subject/var/lib/kubelet /var/lib/kubelet

FROM base AS binary
