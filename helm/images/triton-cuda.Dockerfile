# Triton with llama.cpp for NVIDIA's GPUs, of which the host has the driver:
# docker build --file helm/images/triton-cuda.Dockerfile --tag conch-triton-cuda:0.1.0 .
FROM python:3.12.15-slim-bookworm@sha256:54c85f3c47607a77f32adec749d3c81d1348bf25833671f512b26a9b6d778cb3

# The base has Debian's packages of the day of its digest. This build of llama.cpp needs the system's OpenMP.
RUN apt-get update && apt-get upgrade --yes && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 conch \
    && useradd --no-log-init --uid 65532 --gid 65532 --create-home conch
# The parts of the driver that NVIDIA's container toolkit adds.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /opt/conch
COPY helm/images/local.txt helm/images/cuda12.txt ./
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --require-hashes --no-deps -r local.txt -r cuda12.txt
COPY pyproject.toml README.md LICENSE ./
COPY model_repository model_repository
COPY frontend frontend
COPY build_engines build_engines
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation . \
    && rm -rf build ./*.egg-info

WORKDIR /
USER 65532:65532
CMD ["python3", "-m", "frontend", "triton", "--help"]
