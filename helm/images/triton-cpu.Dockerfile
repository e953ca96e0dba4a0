# Triton with the CPU engine: docker build --file helm/images/triton-cpu.Dockerfile --tag conch-triton-cpu:0.1.0 .
# tritonserver is inside a wheel and needs a Python with its shared library, which this image has.
FROM python:3.12.11-slim-bookworm@sha256:519591d6871b7bc437060736b9f7456b8731f1499a57e22e6c285135ae657bf7

RUN groupadd --gid 65532 conch && useradd --no-log-init --uid 65532 --gid 65532 --create-home conch
WORKDIR /opt/conch
COPY helm/images/triton-cpu.txt ./
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --require-hashes --no-deps -r triton-cpu.txt
COPY pyproject.toml README.md LICENSE ./
COPY model_repository model_repository
COPY frontend frontend
COPY build_engines build_engines
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation . \
    && rm -rf build ./*.egg-info

WORKDIR /
USER 65532:65532
CMD ["python3", "-m", "frontend", "triton", "--help"]
