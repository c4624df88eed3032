# syntax=docker/dockerfile:1
# Cedar for processors without a GPU. Build at the repository's root:
#   docker build -f docker/cpu.Dockerfile -t cedar:cpu .
FROM debian:12 AS build
WORKDIR /src
COPY packages packages
COPY tools/install_packages.sh tools/install_packages.sh
RUN tools/install_packages.sh core cluster
COPY . .
RUN cmake -G Ninja -B build -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCEDAR_TESTS=OFF -DCEDAR_CUDA_CHECK=OFF \
 && cmake --build build --target cedar \
 && cmake --install build --prefix /opt/cedar --strip

FROM debian:12-slim
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
CMD ["serve", "--host", "0.0.0.0"]
