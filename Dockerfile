# The conformance checks for device plugins and DRA drivers, in a container (docs/ci.md), and a fleet of nodes
# (docs/run-a-cluster.md).
#
#   docker build --tag conformance .                                             for a binary
#   docker build --tag conformance --target image --build-arg IMAGE=NAME .       for an image
#   docker build --tag devicecore-fleet --target fleet .                         for a fleet

ARG IMAGE=scratch
FROM ${IMAGE} AS subject

FROM python:3.12-slim AS wheel
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
COPY packages /source/packages
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source /source/packages/tools /source/packages/fleet

FROM python:3.12-slim AS base
COPY --from=wheel /wheels /wheels
RUN python -m pip install --no-cache-dir --find-links /wheels devicecore-tools
WORKDIR /workspace
ENTRYPOINT ["devicecore", "conformance"]

# Nodes in one process. It needs no rights on its machine, and those of docs/fleet/fleet.yaml on the API server.
FROM base AS fleet
RUN python -m pip install --no-cache-dir --find-links /wheels "devicecore-fleet[prometheus]" \
    && mkdir -m 700 /run/fleet && chown 65534:65534 /run/fleet
USER 65534:65534
ENV DEVICECORE_FLEET=/run/fleet/fleet.sock
ENTRYPOINT ["devicecore", "fleet"]

# The files of the image are in /subject, and the command is `chroot /subject ...`. The directories that plugins and
# drivers share with a kubelet are the same inside and outside, so both see the same paths.
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
