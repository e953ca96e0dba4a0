# Triton with the CPU engine: docker build --file helm/images/triton-cpu.Dockerfile --tag conch-triton-cpu:0.1.0 .
# The server is the one inside a wheel, which needs a Python with its shared library, as this image's has.
FROM python:3.12.11-slim-bookworm

RUN groupadd --gid 65532 conch && useradd --no-log-init --uid 65532 --gid 65532 --create-home conch
WORKDIR /opt/conch
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY model_repository model_repository
COPY frontend frontend
COPY build_engines build_engines
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[frontend,cpu,build]' \
    && rm -rf build ./*.egg-info

WORKDIR /
USER 65532:65532
CMD ["python3", "-m", "frontend", "triton", "--help"]
