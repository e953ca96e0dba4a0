# Triton with the CPU engine: docker build --file helm/images/triton-cpu.Dockerfile --tag conch-triton-cpu:0.1.0 .
# tritonserver is inside a wheel and needs a Python with its shared library, which this image has.
FROM python:3.12.15-slim-bookworm@sha256:54c85f3c47607a77f32adec749d3c81d1348bf25833671f512b26a9b6d778cb3

# The base has Debian's packages of the day of its digest.
RUN apt-get update && apt-get upgrade --yes && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 conch \
    && useradd --no-log-init --uid 65532 --gid 65532 --create-home conch
WORKDIR /opt/conch
COPY helm/images/local.txt helm/images/cpu.txt ./
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --require-hashes --no-deps -r local.txt -r cpu.txt
COPY pyproject.toml README.md LICENSE ./
COPY model_repository model_repository
COPY frontend frontend
COPY build_engines build_engines
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation . \
    && rm -rf build ./*.egg-info

WORKDIR /
USER 65532:65532
CMD ["python3", "-m", "frontend", "triton", "--help"]
