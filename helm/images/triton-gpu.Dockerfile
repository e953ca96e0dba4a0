# Triton with TensorRT-LLM 1.2.1: docker build --file helm/images/triton-gpu.Dockerfile --tag conch-triton-gpu:0.1.0 .
FROM nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3

# With several nodes the leader reaches the workers by SSH, as this user.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && groupadd --gid 65532 conch \
    && useradd --no-log-init --uid 65532 --gid 65532 --create-home --shell /bin/bash conch
# The converters are in the image's /app, according to its recipe. If they are not, TensorRT-LLM's repository has them.
RUN if [ -f /app/examples/models/core/llama/convert_checkpoint.py ]; then ln -s /app /opt/TensorRT-LLM; else \
    git clone --depth 1 --branch v1.2.1 https://github.com/NVIDIA/TensorRT-LLM.git /opt/TensorRT-LLM \
    && rm -rf /opt/TensorRT-LLM/.git; fi
WORKDIR /opt/conch
COPY pyproject.toml README.md LICENSE ./
COPY model_repository model_repository
COPY frontend frontend
COPY build_engines build_engines
COPY tests tests
COPY helm/images/beside-tensorrt-llm.sh helm/images/
RUN helm/images/beside-tensorrt-llm.sh --no-cache-dir && rm -rf build ./*.egg-info
# torch asks for the user's name while it is imported. Another user id, as of docker's --user, has none of its own.
ENV USER=conch
# The first thing to run on a new machine: docs/gpu.md, the first hour.
RUN ln -s /opt/conch/tests/workshop/gpu_acceptance/selfcheck.sh /usr/local/bin/selfcheck

WORKDIR /
USER 65532:65532
CMD ["python3", "-m", "frontend", "triton", "--help"]
