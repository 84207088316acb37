# Java, a compiler and a runtime without a display for boxes. BASE: a plain Debian or Ubuntu that docker has; --network host (or the like) reaches its mirror.
ARG BASE=debian:12
FROM $BASE
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends default-jdk-headless \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb
