# The frontend: docker build --file helm/images/frontend.Dockerfile --tag conch-frontend:0.1.0 .
FROM python:3.12.11-slim-bookworm@sha256:519591d6871b7bc437060736b9f7456b8731f1499a57e22e6c285135ae657bf7

RUN groupadd --gid 65532 conch && useradd --no-log-init --uid 65532 --gid 65532 --create-home conch
WORKDIR /opt/conch
COPY helm/images/frontend.txt ./
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --require-hashes --no-deps -r frontend.txt
COPY pyproject.toml README.md LICENSE ./
COPY model_repository model_repository
COPY frontend frontend
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation . \
    && rm -rf build ./*.egg-info

WORKDIR /
USER 65532:65532
CMD ["python3", "-m", "frontend", "api", "--help"]
