# The frontend: docker build --file helm/images/frontend.Dockerfile --tag conch-frontend:0.1.0 .
FROM python:3.12.11-slim-bookworm

RUN groupadd --gid 65532 conch && useradd --no-log-init --uid 65532 --gid 65532 --create-home conch
WORKDIR /opt/conch
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY model_repository model_repository
COPY frontend frontend
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[frontend,traces]' \
    && rm -rf build ./*.egg-info

WORKDIR /
USER 65532:65532
CMD ["python3", "-m", "frontend", "api", "--help"]
