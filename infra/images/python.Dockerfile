# Python with pip and pytest for boxes. BASE: a plain Debian or Ubuntu that docker has; --network host (or the like) reaches its mirror.
ARG BASE=debian:12
FROM $BASE
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-pip python3-venv python3-pytest python3-numpy \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb
