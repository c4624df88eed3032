# syntax=docker/dockerfile:1
# Cedar for NVIDIA GPUs (sm_90a first, sm_80 and newer by plain kernels). Build at the repository's root:
#   docker build -f docker/cuda.Dockerfile -t cedar:cuda .
# The CUDA runtime is linked into the program; the driver's libraries come from the host (NVIDIA Container Toolkit).
FROM debian:12 AS build
SHELL ["/bin/sh", "-eu", "-c"]
ADD https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb /tmp/cuda-keyring.deb
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends ca-certificates \
 && dpkg -i /tmp/cuda-keyring.deb \
 && apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends cuda-nvcc-13-0 cuda-cudart-dev-13-0 libcublas-dev-13-0 \
 && rm -rf /var/lib/apt/lists/*
ENV PATH=/usr/local/cuda-13.0/bin:$PATH
WORKDIR /src
COPY packages packages
COPY tools/install_packages.sh tools/install_packages.sh
RUN tools/install_packages.sh core cluster
COPY . .
RUN cmake -G Ninja -B build -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCEDAR_TESTS=OFF -DCEDAR_CUDA=ON \
 && cmake --build build --target cedar \
 && cmake --install build --prefix /opt/cedar --strip

FROM debian:12-slim
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /
COPY packages packages
COPY tools/install_packages.sh tools/install_packages.sh
RUN tools/install_packages.sh runtime \
 && rm -rf /var/lib/apt/lists/* packages tools \
 && useradd --system --uid 10001 --user-group --no-create-home --home-dir /var/lib/cedar --shell /usr/sbin/nologin cedar \
 && install -d -o cedar -g cedar -m 0750 /var/lib/cedar
COPY --from=build /opt/cedar /usr/local
USER 10001:10001
EXPOSE 8080 7400 7500 9400
STOPSIGNAL SIGTERM
ENTRYPOINT ["cedar"]
CMD ["serve", "--host", "0.0.0.0", "--device", "cuda"]
